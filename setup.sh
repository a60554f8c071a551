#!/usr/bin/env bash
# Prepares a machine for the precision lab: a virtual environment with the package and its reports.
#
#   ./setup.sh --local     in .venv; torch as pip chooses it
#   ./setup.sh --runpod    the same, with the torch that a rented GPU's image already has
set -euo pipefail
cd "$(dirname "$0")"

case "${1:---local}" in
    --local) site=() ;;
    --runpod) site=(--system-site-packages) ;;
    *) echo "setup.sh: unknown option $1; use --local or --runpod" >&2; exit 64 ;;
esac
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.version_info >= (3, 11) or sys.exit("setup.sh: genesis-fp16 needs Python 3.11 or newer, got " + sys.version.split()[0] + "; set PYTHON")'
echo 'setup.sh: installing genesis-fp16 and torch into .venv, which takes minutes'
[ -x .venv/bin/python ] || "$python" -m venv "${site[@]}" .venv
.venv/bin/python -m pip install --quiet --upgrade pip
if [ "${#site[@]}" -gt 0 ] && .venv/bin/python -c 'import torch' 2>/dev/null; then
    .venv/bin/python -m pip install --quiet '.[lab]'  # constraints would replace its torch
else
    .venv/bin/python -m pip install --quiet --constraint constraints.txt '.[lab]'
fi
.venv/bin/genesis-fp16 --version
.venv/bin/python -c 'import torch; print("torch", torch.__version__, "on", "cuda" if torch.cuda.is_available() else "cpu")'
