"""Runs the cells of a sweep in a pool of processes; may be killed at any moment and repeated."""

from __future__ import annotations

import fcntl
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from infrastructure.files import write_json
from infrastructure.precision_lab.errors import LabError
from infrastructure.precision_lab.results import INTERRUPTED, CellFolder, CellSummary, ResultsError
from infrastructure.precision_lab.sweep.cell_run import CellTask
from infrastructure.precision_lab.sweep.plan import Cell, SweepPlan, has_ended, summary_of
from infrastructure.precision_lab.sweep.pool import Death, WorkerPool
from infrastructure.precision_lab.sweep.progress import Progress

SWEEP_SUMMARY, LOG = "sweep_summary.json", "workers.log"
_LOCK = ".lock"
_ORPHANS_END_WITHIN_SECONDS = 10.0
_TICK_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepResult:
    """How a sweep stands after a call.

    Attributes:
        summaries: How each cell ended, None for one that has not.
        seconds: Duration of this call.
        interrupted: Whether it was interrupted.
    """

    summaries: Mapping[Cell, CellSummary | None]
    seconds: float
    interrupted: bool

    @property
    def counts(self) -> dict[str, int]:
        """Number of cells by category; ``not_run`` are those without results."""
        counts = Counter("not_run" if s is None else s.category for s in self.summaries.values())
        return dict(sorted(counts.items()))


def cells_to_run(plan: SweepPlan, output: Path, *, repeat_failed: bool = False) -> list[Cell]:
    """Cells that have not ended, in the order in which they run.

    Raises:
        ForeignFolderError: The folder belongs to another experiment.
        ResultsError: A summary cannot be read.
    """
    plan.check_folder(output)
    return [
        cell
        for cell in plan.cells
        if not has_ended(summary_of(output, cell), repeat_failed=repeat_failed)
    ]


def run_sweep(
    plan: SweepPlan,
    output: Path,
    *,
    jobs: int = 1,
    repeat_failed: bool = False,
    emit: Callable[[str], None] = lambda _: None,
) -> SweepResult:
    """Run every cell that has not ended, and write how the sweep stands to ``sweep_summary.json``.

    A failure of a cell is a result. `KeyboardInterrupt` stops the cells at once; those that were
    running are marked as interrupted, and run again in the next call.

    Args:
        plan: What to run.
        output: Folder of the results.
        jobs: Cells that run at once, each in a process of one thread.
        repeat_failed: Run cells again that have failed.
        emit: Receives lines on the progress.

    Raises:
        ForeignFolderError: The folder belongs to another experiment.
        LabError: Another sweep is writing to the folder, or its results or initial weights are
            damaged.
        RefusedError: The disk refuses, or the initial weights are damaged; the cells that have
            ended are kept.
    """
    if jobs < 1:
        raise LabError(f"jobs must be at least 1, got {jobs}")
    plan.check_folder(output)
    with (
        _locked(output) as lock,
        closing(WorkerPool(jobs, plan.settings, output / LOG, lock)) as pool,
    ):
        began = time.monotonic()
        cells = cells_to_run(plan, output, repeat_failed=repeat_failed)
        progress = Progress(plan.cells, plan.settings.updates, jobs, emit)
        for cell, summary in _summaries(plan, output).items():
            if summary is not None and cell not in cells:
                progress.keep(cell, summary)
        sweep = _Sweep(plan, output)
        try:
            sweep.prepare(pool, list(dict.fromkeys(cell.seed for cell in cells)))
            sweep.train(pool, cells, progress)
        except KeyboardInterrupt:
            sweep.mark_interrupted(pool.close())
            return _write_summary(plan, output, began, interrupted=True)
        except Exception:
            pool.close()
            with suppress(OSError, ResultsError):  # it may be why the sweep ends
                _write_summary(plan, output, began)
            raise
        return _write_summary(plan, output, began)


class _Sweep:
    """The work of a sweep, and its manifest."""

    def __init__(self, plan: SweepPlan, output: Path) -> None:
        self._plan, self._output = plan, output
        self._manifest = plan.write_manifest(output, plan.check_folder(output))

    def prepare(self, pool: WorkerPool, seeds: Sequence[int]) -> None:
        """Make the initial weights of each seed's cells, or check those that are there."""
        weights = {seed: self._plan.weights_of(self._output, seed) for seed in seeds}
        for seed, digest in pool.run({seed: (path, seed) for seed, path in weights.items()}):
            if isinstance(digest, Death):
                raise LabError(f"{weights[seed]}: {digest.reason}")
            known = self._manifest["initial_weights"].setdefault(str(seed), digest)
            if known != digest:
                raise LabError(
                    f"{weights[seed]} has other weights than the sweep began with, so new cells "
                    "could not be compared with those that have ended: restore it, or choose "
                    "another folder"
                )
            self._plan.write_manifest(self._output, self._manifest)

    def train(self, pool: WorkerPool, cells: Sequence[Cell], progress: Progress) -> None:
        """Run each cell; write the summary of one whose process has died."""
        for cell, result in pool.run({cell: self._task(cell) for cell in cells}, progress.step):
            summary = self._finish(cell, result) if isinstance(result, Death) else result
            if summary.environment and not self._manifest["environment"]:
                self._manifest["environment"] = dict(summary.environment)
                self._plan.write_manifest(self._output, self._manifest)
            progress.end(cell, summary)

    def mark_interrupted(self, unfinished: Mapping[object, float]) -> None:
        """Write the summaries of the cells among *unfinished* tasks, given with their seconds."""
        for cell, seconds in unfinished.items():
            if isinstance(cell, Cell) and self._folder(cell).summary() is None:
                reason = "interrupted by the user; it runs again in the next call"
                self._finish(cell, Death(INTERRUPTED, reason, seconds))

    def _folder(self, cell: Cell) -> CellFolder:
        return CellFolder.of(self._output, cell.preset, cell.seed)

    def _task(self, cell: Cell) -> CellTask:
        return CellTask(
            preset=cell.preset,
            seed=cell.seed,
            folder=self._folder(cell).path,
            weights=self._plan.weights_of(self._output, cell.seed),
            initial_weights=self._manifest["initial_weights"][str(cell.seed)],
        )

    def _finish(self, cell: Cell, death: Death) -> CellSummary:
        """Write the summary that the process of *cell* could not write."""
        updates = 0
        with suppress(ResultsError):
            updates = len(self._folder(cell).steps())
        summary = CellSummary(
            preset=cell.preset,
            seed=cell.seed,
            category=death.category,
            reason=death.reason,
            updates=updates,
            planned_updates=self._plan.settings.updates,
            seconds=death.seconds,
            cpu_seconds=0.0,
            initial_weights=self._manifest["initial_weights"][str(cell.seed)],
        )
        self._folder(cell).finish(summary)
        return summary


def _summaries(plan: SweepPlan, output: Path) -> dict[Cell, CellSummary | None]:
    return {cell: summary_of(output, cell) for cell in plan.cells}


def _write_summary(
    plan: SweepPlan, output: Path, began: float, *, interrupted: bool = False
) -> SweepResult:
    """Write how the sweep stands, and return it."""
    result = SweepResult(
        summaries=_summaries(plan, output),
        seconds=time.monotonic() - began,
        interrupted=interrupted,
    )
    cells = [
        {
            "preset": cell.preset,
            "seed": cell.seed,
            "category": "not_run" if summary is None else summary.category,
            "reason": "" if summary is None else summary.reason,
            "updates": 0 if summary is None else summary.updates,
        }
        for cell, summary in result.summaries.items()
    ]
    how = {"interrupted": interrupted, "seconds": result.seconds, "counts": result.counts}
    write_json(output / SWEEP_SUMMARY, {**how, "cells": cells})
    return result


@contextmanager
def _locked(output: Path) -> Iterator[int]:
    """Lock the folder; yields the descriptor, which workers inherit, so that they hold it too.

    Raises:
        LabError: Another sweep holds the lock.
        OSError: The folder cannot be written.
    """
    output.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + _ORPHANS_END_WITHIN_SECONDS
    with (output / _LOCK).open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LabError(
                        f"{output}: another sweep is writing here; wait for it, or choose another "
                        "folder"
                    ) from None
                time.sleep(_TICK_SECONDS)
        yield file.fileno()
