"""Measure the cases of one size in one interleaved run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle, islice

import torch

from benchmarks.measuring.not_run import NotRunError
from benchmarks.measuring.observe import count_reads, effective_precision
from benchmarks.measuring.timing import interleave, seconds_of
from benchmarks.step.cases import LOOPS, not_run_reason
from benchmarks.step.loops import Loop, Requested, Setup
from benchmarks.step.models import Batch, Size, build_batches, build_model
from benchmarks.step.results import Case, Measured, NotRun, Result

CUDA_STEPS = 20  # in a timed block
_WARM_UP_STEPS = 5  # with a graph, three are eager and the fourth is captured
_OBSERVED_STEPS = 8


def measure(
    size: Size, cases: Iterable[Case], device: torch.device, *, rounds: int, seed: int
) -> dict[Case, Result]:
    """Time *cases*, a block of steps per round, and observe their steps.

    Args:
        size: Model size of all *cases*.
        cases: Cases to measure; those that cannot run give a `NotRun`.
        device: Device to compute on.
        rounds: Blocks of each case.
        seed: Seed of weights, batches and orders.
    """
    batches = build_batches(size, device, seed)
    results: dict[Case, Result] = {}
    running: dict[Case, _Running] = {}
    for case in cases:
        try:
            running[case] = _Running(case, size, batches, device, seed)
        except NotRunError as error:
            results[case] = NotRun(case=case, reason=str(error))
        except (RuntimeError, ValueError) as error:  # a peer refuses, or memory is exhausted
            results[case] = NotRun(case=case, reason=f"{type(error).__name__}: {error}")
    costs = interleave({case: one.time_block for case, one in running.items()}, rounds, seed)
    allow_tf32("fp32", device)  # restore the default
    for case, one in running.items():
        results[case] = one.result([cost[case] for cost in costs])
    return results


class _Running:
    """A loop that has been built, warmed up and observed.

    Raises:
        NotRunError: The case cannot run on *device*.
    """

    def __init__(
        self, case: Case, size: Size, batches: Sequence[Batch], device: torch.device, seed: int
    ) -> None:
        if reason := not_run_reason(case, device):
            raise NotRunError(reason)

        def build() -> Loop:
            model = build_model(size, device, seed)
            return LOOPS[case.loop](
                Setup(model=model, device=device, precision=case.precision, mode=case.mode)
            )

        self._case, self._device = case, device
        self._batches = cycle(batches)
        self._steps = CUDA_STEPS if device.type == "cuda" else size.cpu_steps
        allow_tf32(case.precision, device)
        self._peak_bytes = _peak_bytes(build, self._batches, device)
        self._loop = build()
        # A captured step dispatches nothing later, so it is observed during warm-up.
        self._effective = effective_precision(lambda: self._run(_WARM_UP_STEPS), device)
        reads = count_reads(self._loop.optimizer, lambda: self._run(_OBSERVED_STEPS), device)
        self._host_reads = reads / _OBSERVED_STEPS

    def _run(self, steps: int) -> None:
        _run(self._loop, self._batches, steps)

    def time_block(self) -> float:
        """Run one block and return seconds per step."""
        allow_tf32(self._case.precision, self._device)
        self._loop.enter()
        return seconds_of(lambda: self._run(self._steps), self._device) / self._steps

    def result(self, seconds: Sequence[float]) -> Measured:
        """Return the result with the times of all rounds."""
        return Measured(
            case=self._case,
            effective=self._effective,
            seconds=tuple(seconds),
            host_reads=self._host_reads,
            peak_bytes=self._peak_bytes,
            note=self._loop.note,
        )


def allow_tf32(precision: Requested, device: torch.device) -> None:
    """Allow TF32 in float32 products if *precision* is ``tf32``, else forbid it."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")


def _peak_bytes(
    build: Callable[[], Loop], batches: Iterator[Batch], device: torch.device
) -> int | None:
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    _run(build(), batches, _WARM_UP_STEPS)
    return torch.cuda.max_memory_allocated(device) - before


def _run(loop: Loop, batches: Iterator[Batch], steps: int) -> None:
    for batch in islice(batches, steps):
        loop.step(batch)
