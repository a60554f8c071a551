"""Runs the cells of a sweep in a pool of processes; may be killed at any moment and repeated."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from infrastructure.files import write_json
from infrastructure.precision_lab.errors import LabError
from infrastructure.precision_lab.failures import FailureKind
from infrastructure.precision_lab.results import (
    INTERRUPTED,
    CellFolder,
    CellSummary,
    ResultsError,
)
from infrastructure.precision_lab.sweep.plan import Cell, SweepPlan, has_ended, summary_of
from infrastructure.precision_lab.sweep.pool import WorkerDiedError, WorkerPool
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


def cells_to_run(
    plan: SweepPlan, output: Path, *, repeat_failed: bool = False
) -> dict[Cell, CellSummary | None]:
    """Cells that have not ended, in the order in which they run, with what an attempt has left.

    Raises:
        ForeignFolderError: The folder belongs to another experiment.
        ResultsError: A summary cannot be read.
    """
    plan.check_folder(output)
    summaries = {cell: summary_of(output, cell) for cell in plan.cells}
    return {
        cell: summary
        for cell, summary in summaries.items()
        if not has_ended(summary, repeat_failed=repeat_failed)
    }


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
    with _locked(output) as lock:
        began = time.monotonic()
        with closing(WorkerPool(jobs, plan.settings, output / LOG, lock)) as pool:
            call = _Call(
                plan, output, pool, Progress(plan.cells, plan.settings.updates, jobs, emit)
            )
            cells = call.keep_ended(repeat_failed=repeat_failed)
            try:
                pool.run(call.prepare, list(dict.fromkeys(cell.seed for cell in cells)))
                pool.run(call.train, cells)
            except KeyboardInterrupt:
                pass  # its cells are marked
            except Exception:
                with suppress(OSError):  # it may be why the sweep ends
                    call.write_summary(began)
                raise
        return call.write_summary(began)


class _Call:
    """One call of `run_sweep`; `prepare` and `train` run in the pool's threads."""

    def __init__(self, plan: SweepPlan, output: Path, pool: WorkerPool, progress: Progress) -> None:
        self._plan, self._output, self._pool, self._progress = plan, output, pool, progress
        self._manifest = plan.write_manifest(output, plan.check_folder(output))
        self._summaries = {cell: summary_of(output, cell) for cell in plan.cells}
        self._guard = threading.Lock()  # of the manifest

    def keep_ended(self, *, repeat_failed: bool) -> list[Cell]:
        """Count the cells that have ended as done; return the rest."""
        cells = []
        for cell, summary in self._summaries.items():
            if summary is not None and has_ended(summary, repeat_failed=repeat_failed):
                self._progress.keep(cell, summary)
            else:
                cells.append(cell)
        return cells

    def prepare(self, seed: int) -> None:
        """Make the initial weights of a seed's cells, or check those that are there."""
        path = self._plan.weights_of(self._output, seed)
        digest = self._pool.ask({"seed": seed, "weights": str(path)})
        with self._guard:
            known = self._manifest["initial_weights"].setdefault(str(seed), digest)
            if known != digest:
                raise LabError(
                    f"{path} has other weights than the sweep began with, so new cells could not "
                    "be compared with those that have ended: restore it, or choose another folder"
                )
            self._plan.write_manifest(self._output, self._manifest)

    def train(self, cell: Cell) -> None:
        """Run *cell*; write the summary that a process which has died could not write."""
        folder = CellFolder.of(self._output, cell.preset, cell.seed)
        request = {
            "preset": cell.preset,
            "seed": cell.seed,
            "folder": str(folder.path),
            "weights": str(self._plan.weights_of(self._output, cell.seed)),
            "initial_weights": self._manifest["initial_weights"][str(cell.seed)],
        }
        began = time.monotonic()
        try:
            self._pool.ask(request, lambda number: self._progress.step(cell, number))
        except WorkerDiedError as error:
            stopped_by = self._pool.stopped_by
            if stopped_by is None:
                category, reason = self._cause_of_death(error)
                folder.finish(self._unfinished(cell, began, category, reason))
            elif not isinstance(stopped_by, KeyboardInterrupt):
                raise
            elif folder.summary() is None:
                reason = "interrupted by the user; it runs again in the next call"
                folder.finish(self._unfinished(cell, began, INTERRUPTED, reason))
        summary = self._summaries[cell] = folder.summary()
        if summary is None:
            raise RuntimeError(f"{folder.path}: the worker has written no summary")
        with self._guard:
            if summary.environment and not self._manifest["environment"]:
                self._manifest["environment"] = dict(summary.environment)
                self._plan.write_manifest(self._output, self._manifest)
        if self._pool.stopped_by is None:
            self._progress.end(cell, summary)

    def _cause_of_death(self, error: WorkerDiedError) -> tuple[str, str]:
        """Category and reason of a cell whose process has ended."""
        if error.timed_out:
            seconds = self._plan.settings.timeout_seconds
            return FailureKind.TIMEOUT.value, f"no end after {seconds:.0f} s; killed"
        if error.out_of_memory:
            reason = f"{error}: the kernel was killing processes for lack of memory"
            return FailureKind.OUT_OF_MEMORY.value, reason
        return FailureKind.UNKNOWN.value, str(error)

    def _unfinished(self, cell: Cell, began: float, category: str, reason: str) -> CellSummary:
        updates = 0
        with suppress(ResultsError):
            updates = len(CellFolder.of(self._output, cell.preset, cell.seed).steps())
        return CellSummary(
            preset=cell.preset,
            seed=cell.seed,
            category=category,
            reason=reason,
            updates=updates,
            planned_updates=self._plan.settings.updates,
            seconds=time.monotonic() - began,
            cpu_seconds=0.0,
            initial_weights=self._manifest["initial_weights"][str(cell.seed)],
        )

    def write_summary(self, began: float) -> SweepResult:
        """Write how the sweep stands, and return it."""
        result = SweepResult(
            summaries=self._summaries,
            seconds=time.monotonic() - began,
            interrupted=isinstance(self._pool.stopped_by, KeyboardInterrupt),
        )
        cells = [
            {
                "preset": cell.preset,
                "seed": cell.seed,
                "category": "not_run" if summary is None else summary.category,
                "reason": "" if summary is None else summary.reason,
                "updates": 0 if summary is None else summary.updates,
            }
            for cell, summary in self._summaries.items()
        ]
        content = {
            "interrupted": result.interrupted,
            "seconds": result.seconds,
            "counts": result.counts,
            "cells": cells,
        }
        write_json(self._output / SWEEP_SUMMARY, content)
        return result


@contextmanager
def _locked(output: Path) -> Iterator[int]:
    """Lock the folder; yields the descriptor, which workers inherit, so that they hold it too.

    Raises:
        LabError: Another sweep holds the lock.
        OSError: The folder cannot be written.
    """
    output.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(output / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + _ORPHANS_END_WITHIN_SECONDS
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LabError(
                        f"{output}: another sweep is writing here; wait for it, or choose another "
                        "folder"
                    ) from None
                time.sleep(_TICK_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)
