"""Whether `auto` takes the GPU, and whether its memory is reported as torch counts it."""

from __future__ import annotations

import torch

from benchmarks.gpu.section import Task
from benchmarks.gpu.training import train_watched
from infrastructure.events.event import StepStats
from infrastructure.training.precision import native_half_types, resolve_device

_MEBI = 2**20


def run(task: Task) -> None:
    """Train for a moment."""
    if task.needs_cuda():
        return
    auto = resolve_device("auto")
    torch.cuda.reset_peak_memory_stats(task.device)
    watched = train_watched(
        "small", auto, task.folder / "training", steps=100, telemetry=0, cuda_graph=False
    )
    place = next(watched.model.parameters()).device
    half = ", ".join(name for name, native in native_half_types(task.device).items() if native)
    task.findings.decide(
        "auto-takes-cuda",
        holds=auto.type == place.type == "cuda",
        measured=f"auto is {auto}, the trained weights are on {place}; native half types: {half}",
    )
    _decide_memory(task, watched.model, [e for e in watched.events if isinstance(e, StepStats)])


def _decide_memory(task: Task, model: torch.nn.Module, windows: list[StepStats]) -> None:
    """Every window's peak must hold weights, two moments and gradients, and fit on the device."""
    peaks = [each.cuda_memory_allocated_bytes or 0 for each in windows]
    least = 4 * sum(p.numel() * p.element_size() for p in model.parameters())
    most = torch.cuda.get_device_properties(task.device).total_memory
    task.findings.decide(
        "memory-metric",
        holds=bool(peaks) and all(least <= peak <= most for peak in peaks),
        measured=f"{len(peaks)} windows, peaks {min(peaks, default=0) / _MEBI:.1f} to "
        f"{max(peaks, default=0) / _MEBI:.1f} MiB; weights, gradients and moments are "
        f"{least / _MEBI:.1f} MiB",
        lowest_bytes=min(peaks, default=0),
        highest_bytes=max(peaks, default=0),
        least_bytes=least,
    )
