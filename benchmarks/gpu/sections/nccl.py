"""Two GPUs over NCCL, started by torchrun; in a rehearsal two processes over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import torch

from benchmarks.gpu.claims import ROOT, claims_of
from benchmarks.gpu.section import Task
from benchmarks.gpu.sections import ranks

_RANKS = 2


def run(task: Task) -> None:
    """Compare two ranks with one process that takes the same micro-batches."""
    devices = torch.cuda.device_count()
    if task.on_cuda and devices < _RANKS:
        for claim in claims_of(task.name):
            task.findings.cannot(claim.name, f"it takes two GPUs, and torch sees {devices}")
        return
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={_RANKS}", "--max-restarts=0"]
    command += [f"--log-dir={os.devnull}"]  # otherwise it leaves a folder in /tmp
    command += ["--module", ranks.__name__, str(task.folder), task.device.type]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise RuntimeError(f"torchrun ended with {done.returncode}")
    both = [json.loads((task.folder / f"rank-{rank}.json").read_text()) for rank in range(_RANKS)]
    _decide_step(task, both)
    _decide_skip(task, both)


def _decide_step(task: Task, both: list[dict[str, Any]]) -> None:
    differences: dict[str, float] = {}
    holds = True
    for name in ranks.CASES:
        precision = name.partition("-")[2]
        weights = ranks.train_alone(precision, task.device)
        for results in both:
            other = torch.tensor(results["weights"][name])
            difference = float((weights - other).abs().max() / weights.abs().max())
            differences[name] = max(difference, differences.get(name, 0.0))
            holds &= difference <= ranks.TOLERANCES[precision]
    task.findings.decide(
        "nccl-one-step",
        holds=holds,
        measured="largest relative difference of a weight: "
        + ", ".join(f"{name} {value:.1e}" for name, value in differences.items()),
        **differences,
    )


def _decide_skip(task: Task, both: list[dict[str, Any]]) -> None:
    first, second = (each["overflow"] for each in both)
    skipped = {name: stats["overflow_steps"] for name, stats in first.items()}
    task.findings.decide(
        "nccl-skip-together",
        holds=first == second and set(skipped.values()) == {1},
        measured=f"skipped steps by kind: {skipped}; both ranks agree: {first == second}",
    )
