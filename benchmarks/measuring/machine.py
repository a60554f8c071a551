"""Description of the machine that was measured."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


def describe(device: torch.device) -> dict[str, str]:
    """Return the columns ``device`` and ``torch`` of every row."""
    if device.type == "cuda":
        name = f"{torch.cuda.get_device_name(device)} (CUDA {torch.version.cuda})"
    else:
        name = f"cpu: {_processor()}, {torch.get_num_threads()} thread"
    return {"device": name, "torch": torch.__version__}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
