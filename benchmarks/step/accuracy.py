"""Accuracy of half precision: held-out loss with the same data, seeds and steps as FP32."""

from __future__ import annotations

from itertools import cycle, islice

import torch
from torch.nn import functional

from benchmarks.measuring.observe import effective_precision, refuse_precisions
from benchmarks.measuring.spread import Spread
from benchmarks.step.loops import Requested, Setup, ours
from benchmarks.step.models import Batch, Size, build_batches, build_model
from benchmarks.step.results import Figure

_AT_MOST = 1.005


def compare_accuracy(
    size: Size, precision: Requested, device: torch.device, *, steps: int, seeds: int
) -> Figure:
    """Divide our held-out loss in *precision* by that in FP32, once per seed; evaluate in FP32.

    Args:
        size: Model size.
        precision: Half precision.
        device: Device to train on.
        steps: Steps of each training.
        seeds: Number of trainings in each precision.
    """
    what = f"{size.name}: held-out loss after {steps} steps, ours {precision} ÷ ours fp32"
    ratios = []
    for seed in range(seeds):
        half, effective = _held_out_loss(size, precision, device, steps, seed)
        full, baseline = _held_out_loss(size, "fp32", device, steps, seed)
        if refusal := refuse_precisions(effective, baseline):
            return Figure(what=what, at_most=_AT_MOST, reason=f"refused: {refusal}")
        ratios.append(half / full)
    return Figure(what=what, spread=Spread.of(ratios), at_most=_AT_MOST)


def _held_out_loss(
    size: Size, precision: Requested, device: torch.device, steps: int, seed: int
) -> tuple[float, str]:
    """Return the loss, and the precision in which the training computed."""
    *training, held_out = build_batches(size, device, seed)
    loop = ours(Setup(model=build_model(size, device, seed), device=device, precision=precision))

    def train(batches: list[Batch]) -> None:
        for batch in batches:
            loop.step(batch)

    first, *rest = islice(cycle(training), steps)
    effective = effective_precision(lambda: train([first]), device)
    train(rest)
    with torch.no_grad():
        return functional.mse_loss(loop.model(held_out.x), held_out.y).item(), effective
