"""The loops that are measured, their combinations, and the limits of the ratios."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import get_args

import torch

from benchmarks.step import loops, peers
from benchmarks.step.loops import HALF_DTYPES, Loop, Mode, Requested, Setup
from benchmarks.step.models import SIZES
from benchmarks.step.results import Case, Comparison

LOOPS: dict[str, Callable[[Setup], Loop]] = {
    "textbook": loops.textbook,
    "folded": loops.folded,
    "ours": loops.ours,
    "fabric": peers.fabric,
    "accelerate": peers.accelerate,
}

# Upper limits of ratios of process CPU time on a CPU, one thread.
_TEXTBOOK = {
    ("tiny", "fp16"): 0.85,
    ("tiny", "bf16"): 0.90,
    ("tiny", "fp32"): 0.87,
    "small": 0.97,
    "medium": 1.03,
}
_CPU_LOOPS: dict[str, dict[str, float]] = {
    "folded": {"tiny": 1.10, "small": 1.03},
    "fabric": {"tiny": 0.80, "small": 0.92},
    "accelerate": {"tiny": 0.65, "small": 0.88},
}
_CPU_BF16 = {"small": 0.75, "medium": 0.40}
_CUDA_GRAPH = {"small": 1 / 4, "medium": 1 / 2}
_CUDA_MEMORY = {"large": 0.60}


def list_cases(sizes: Iterable[str]) -> list[Case]:
    """Return all combinations, including those that cannot run here and get a reason instead."""
    return [
        Case(size=size, loop=loop, precision=precision, mode=mode)
        for size, loop, precision, mode in product(
            sizes, LOOPS, get_args(Requested), get_args(Mode)
        )
    ]


def not_run_reason(case: Case, device: torch.device) -> str:
    """Return why *case* is not tried on *device*; empty if it is."""
    if device.type == "cuda":
        return ""
    if case.precision == "tf32":
        return "TF32 exists on CUDA only"
    if case.mode == "graph":
        return "CUDA graphs exist on CUDA only"
    if case.precision == "fp16" and not SIZES[case.size].cpu_fp16:
        return "a CPU has no fast FP16 product; only tiny is run, to check the result"
    return ""


def list_comparisons(sizes: Iterable[str], device: torch.device) -> list[Comparison]:
    """Return all comparisons, with their limits on *device*."""
    on_cuda = device.type == "cuda"
    return [
        comparison
        for size in sizes
        for comparison in (
            *_loop_comparisons(size, on_cuda=on_cuda),
            *_precision_comparisons(size, on_cuda=on_cuda),
        )
    ]


def _loop_comparisons(size: str, *, on_cuda: bool) -> Iterable[Comparison]:
    for precision, other in product(get_args(Requested), LOOPS):
        if other != "ours" and (on_cuda or precision != "tf32"):
            yield Comparison(
                numerator=Case(size=size, loop="ours", precision=precision),
                denominator=Case(size=size, loop=other, precision=precision),
                compares="loops",
                at_most=None if on_cuda else _loop_limit(size, other, precision),
            )


def _loop_limit(size: str, other: str, precision: str) -> float | None:
    if other == "textbook":
        return _TEXTBOOK.get((size, precision), _TEXTBOOK.get(size))
    return _CPU_LOOPS[other].get(size)


def _precision_comparisons(size: str, *, on_cuda: bool) -> Iterable[Comparison]:
    eager = Case(size=size, loop="ours", precision="fp32")
    for precision in HALF_DTYPES:
        yield Comparison(
            numerator=Case(size=size, loop="ours", precision=precision),
            denominator=eager,
            compares="precisions",
            at_most=_CPU_BF16.get(size) if precision == "bf16" and not on_cuda else None,
        )
        yield Comparison(  # the gain of any loop on this device; bounds the ratio above
            numerator=Case(size=size, loop="textbook", precision=precision),
            denominator=Case(size=size, loop="textbook", precision="fp32"),
            compares="precisions",
        )
    if not on_cuda:
        return
    graph = Case(size=size, loop="ours", precision="fp16", mode="graph")
    limits: dict[Requested, float | None] = {"fp32": _CUDA_GRAPH.get(size), "tf32": None}
    for precision, at_most in limits.items():
        yield Comparison(
            numerator=graph,
            denominator=Case(size=size, loop="textbook", precision=precision),
            compares="precisions",
            at_most=at_most,
        )
    yield Comparison(
        numerator=Case(size=size, loop="ours", precision="fp16"),
        denominator=eager,
        compares="precisions",
        at_most=_CUDA_MEMORY.get(size),
        quantity="memory",
    )
