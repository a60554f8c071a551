"""What half precision costs in accuracy: the same data, seeds and steps as FP32, held-out loss."""

from __future__ import annotations

from itertools import cycle, islice

import torch
from torch.nn import functional

from benchmarks.measuring.observe import effective_precision, refuse_precisions
from benchmarks.measuring.spread import Spread
from benchmarks.step.loops import Requested, Setup, ours
from benchmarks.step.models import Batch, Size, build_batches, build_model
from benchmarks.step.results import Finding

_AT_MOST = 1.005


def compare_accuracy(
    size: Size, precision: Requested, device: torch.device, *, steps: int, seeds: int
) -> Finding:
    """Held-out loss of ours in *precision* ÷ that in FP32, both evaluated in FP32; one a seed.

    Args:
        size: Of the model.
        precision: The half one.
        device: Where.
        steps: Of each training.
        seeds: How many trainings of each.
    """
    what = f"{size.name}: held-out loss after {steps} steps, ours {precision} ÷ ours fp32"
    ratios = []
    for seed in range(seeds):
        half, effective = _held_out_loss(size, precision, device, steps, seed)
        full, baseline = _held_out_loss(size, "fp32", device, steps, seed)
        if refusal := refuse_precisions(effective, baseline):
            return Finding(what=what, at_most=_AT_MOST, reason=f"refused: {refusal}")
        ratios.append(half / full)
    return Finding(what=what, spread=Spread.of(ratios), at_most=_AT_MOST)


def _held_out_loss(
    size: Size, precision: Requested, device: torch.device, steps: int, seed: int
) -> tuple[float, str]:
    """The loss, and the precision that the training computed in."""
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
