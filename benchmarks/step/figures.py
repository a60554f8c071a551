"""The figures of the benchmark with their limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import get_args

import torch

from benchmarks.measuring.observe import count_reads
from benchmarks.measuring.spread import Spread
from benchmarks.step.accuracy import compare_accuracy
from benchmarks.step.buffers import compare_buffer_restore
from benchmarks.step.cases import list_comparisons
from benchmarks.step.loops import HALF_DTYPES, Requested, Setup, naive
from benchmarks.step.models import SIZES, build_batches, build_model
from benchmarks.step.optimizer_phase import compare_optimizer_phases
from benchmarks.step.results import Figure, Measured, Results

_NAIVE_READS = 3  # the scale before and after, and the loss
_WARM_UP_STEPS, _COUNTED_STEPS = 2, 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """Length of the measurements.

    Attributes:
        cpu_rounds: Timed blocks of every case on a CPU.
        cuda_rounds: Timed blocks of every case on CUDA, where there are more cases.
        phase_rounds: Timed optimizer phases.
        accuracy_steps: Steps of each training whose accuracy is compared.
        seeds: Trainings in each precision.
    """

    cpu_rounds: int
    cuda_rounds: int
    phase_rounds: int
    accuracy_steps: int
    seeds: int


QUICK = Effort(cpu_rounds=5, cuda_rounds=5, phase_rounds=10, accuracy_steps=100, seeds=2)
FULL = Effort(cpu_rounds=80, cuda_rounds=30, phase_rounds=60, accuracy_steps=400, seeds=5)


def measure_figures(
    results: Results, device: torch.device, effort: Effort, seed: int
) -> Iterator[Figure]:
    """Yield the ratios of *results*, then the figures that need their own measurement."""
    for comparison in list_comparisons(dict.fromkeys(case.size for case in results), device):
        yield comparison.measure(results)
    yield from _host_read_figures(results, device, seed)
    for precision in get_args(Requested):
        if precision in ("fp32", "fp16"):  # without and with loss scale; there are no products
            yield compare_optimizer_phases(device, precision, rounds=effort.phase_rounds, seed=seed)
    for name in ("tiny", "small"):
        yield compare_buffer_restore(name, device, rounds=effort.cpu_rounds, seed=seed)
    # On a CPU FP16 is slow, so only tiny is affordable.
    size = SIZES["small" if device.type == "cuda" else "tiny"]
    for precision in HALF_DTYPES:
        yield compare_accuracy(
            size, precision, device, steps=effort.accuracy_steps, seeds=effort.seeds
        )


def _host_read_figures(results: Results, device: torch.device, seed: int) -> Iterable[Figure]:
    reads = [
        result.host_reads
        for result in results.values()
        if isinstance(result, Measured) and result.case.loop == "ours"
    ]
    if reads:
        yield Figure(
            what="host reads per step, ours, most of all cases",
            spread=Spread.of([max(reads)]),
            exactly=0,
        )
    yield Figure(
        what="host reads per step, naive FP16 loop (shows that the detector sees them)",
        spread=Spread.of([count_naive_reads(device, seed)]),
        exactly=_NAIVE_READS,
    )


def count_naive_reads(device: torch.device, seed: int) -> float:
    """Return host reads per step of the naive loop."""
    size = SIZES["tiny"]
    batches = build_batches(size, device, seed)
    loop = naive(Setup(model=build_model(size, device, seed), device=device, precision="fp16"))
    for batch in batches[:_WARM_UP_STEPS]:
        loop.step(batch)

    def steps() -> None:
        for batch in batches[:_COUNTED_STEPS]:
            loop.step(batch)

    return count_reads(loop.optimizer, steps, device) / _COUNTED_STEPS
