"""A real daemon whose run trains on the GPU by graphs, switched live: the drill of operators."""

from __future__ import annotations

import re
import subprocess
import sys

from benchmarks.gpu.claims import ROOT
from benchmarks.gpu.section import Task

_DRILL = ROOT / "deploy" / "drill" / "drill.py"
_SWITCH = re.compile(r"trains in (\w+) \(reason: (\w+)\) after ([\d.]+) s")
_SWITCHES = 4
_LIMIT_SECONDS = 2.0


def run(task: Task) -> None:
    """Run the drill on the device."""
    words = ["--device", str(task.device), *(["--cuda-graph"] if task.on_cuda else [])]
    done = subprocess.run(
        [sys.executable, _DRILL, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout)
    task.findings.show(done.stdout)
    seconds = [float(each[3]) for each in _SWITCH.finditer(done.stdout)][1:]  # not the start
    device = re.search(r"device: (\S+)", done.stdout)
    where = device[1] if device else "an unknown device"
    eager = "cuda_graph_refused" in done.stdout
    if done.returncode and len(seconds) < _SWITCHES and "no fp" not in done.stdout:
        last = done.stdout.strip().rpartition("\n")[2]
        task.findings.cannot("live-flip", f"the drill ended with {done.returncode}: {last}")
        return
    task.findings.decide(
        "live-flip",
        holds=done.returncode == 0
        and len(seconds) == _SWITCHES
        and max(seconds) <= _LIMIT_SECONDS
        and where.startswith(task.device.type)
        and not eager,
        measured=f"on {where}{', without graphs' if eager or not task.on_cuda else ', by graphs'}: "
        f"{len(seconds)} switches, " + ", ".join(f"{each:.2f} s" for each in seconds),
        longest_seconds=max(seconds, default=0.0),
    )
