"""What is measured on: device, driver, versions. A driver that hangs costs a process of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import torch

from benchmarks.measuring.machine import describe

_PATIENCE_SECONDS = 60.0
# In a process of its own: a context of CUDA takes memory, and a broken driver may hang or crash.
_QUESTION = """
import json, sys, torch
name = sys.argv[1]
if not torch.cuda.is_available():
    built = torch.version.cuda
    why = "torch %s is built for CUDA %s, but finds no device" % (torch.__version__, built)
    print(json.dumps({"problem": why if built else "torch %s has no CUDA" % torch.__version__}))
    sys.exit()
index = torch.device(name).index or 0
if index >= torch.cuda.device_count():
    print(json.dumps({"problem": "torch sees %d devices" % torch.cuda.device_count()}))
    sys.exit()
properties = torch.cuda.get_device_properties(index)
torch.ones(1, device=name).add(1).item()
print(json.dumps({
    "device": properties.name,
    "devices": str(torch.cuda.device_count()),
    "memory": "%.0f GiB" % (properties.total_memory / 2**30),
    "capability": "%d.%d" % (properties.major, properties.minor),
    "torch": torch.__version__,
    "CUDA": torch.version.cuda,
}))
"""


def describe_cuda(name: str) -> dict[str, str]:
    """Device *name*, its driver and torch; or only ``problem``, the reason it cannot be used."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _QUESTION, name],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"CUDA did not answer within {_PATIENCE_SECONDS:.0f} s"}
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        return {"problem": f"{name} cannot be used (exit code {done.returncode}): {last}"}
    found: dict[str, str] = json.loads(done.stdout.strip().rpartition("\n")[2])
    if "problem" in found:
        return {
            "problem": f"{found['problem']}; run this on a machine with an NVIDIA GPU, its driver "
            "and a CUDA build of torch, or try the sections on the CPU with --rehearse"
        }
    return {**found, "driver": _driver()}


def describe_cpu() -> dict[str, str]:
    """The CPU and torch, for a rehearsal."""
    return describe(torch.device("cpu"))


def _driver() -> str:
    if (program := shutil.which("nvidia-smi")) is None:
        return "unknown: nvidia-smi is missing"
    try:
        done = subprocess.run(
            [program, "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
            check=True,
        )
    except (subprocess.SubprocessError, OSError) as error:
        return f"unknown: {error}"
    return done.stdout.partition("\n")[0].strip()
