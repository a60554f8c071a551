#!/usr/bin/env bash
# Runs the precision lab from one command, on a rented GPU or anywhere else, and writes the report.
#
#   ./runpod_start.sh --quick                  minutes: shows that everything works
#   ./runpod_start.sh [OPTION ...]             every preset with five seeds
#
# It compares precisions of a policy, freezes and replays it, sweeps, and ends with results/report.html. OPTIONS reach
# lab sweep, such as --preset bf16_pure or --updates 500. Start it again to resume the sweep.
# RESULTS names the folder; LAB_PROGRAM the program, where it is installed elsewhere.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
results=${RESULTS:-results}
program=${LAB_PROGRAM:-}
if [ -z "$program" ]; then
    [ -x "$here/.venv/bin/genesis-fp16" ] || "$here/setup.sh" --runpod
    program=$here/.venv/bin/genesis-fp16
fi
lab() {
    echo "runpod_start.sh: lab $*" >&2
    "$program" lab "$@"
}

compare=()
for option in "$@"; do
    [ "$option" != --quick ] || compare=(--prompts 4 --length 64 --temperature 1)
done
mkdir -p "$results"
lab compare --output "$results" "${compare[@]}"
[ -f "$results/frozen/manifest.json" ] || lab freeze "$results/frozen" --base-model small
lab replay "$results/frozen" --output "$results"
status=0
lab sweep --output "$results" "$@" || status=$?
lab report "$results"  # also of a sweep that was interrupted
exit "$status"
