"""Runs the cells of a sweep in worker processes; may be killed at any moment and repeated."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from infrastructure.precision_lab.sweep.progress import Progress
from infrastructure.precision_lab.sweep.workers import Worker, WorkerDiedError

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
        found = Counter("not_run" if s is None else s.category for s in self.summaries.values())
        return dict(sorted(found.items()))


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
        cell: each
        for cell, each in summaries.items()
        if not has_ended(each, repeat_failed=repeat_failed)
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
        manifest = plan.write_manifest(output, plan.check_folder(output))
        summaries = {cell: summary_of(output, cell) for cell in plan.cells}
        progress = Progress(plan.cells, plan.settings.updates, jobs, emit)
        cells = []
        for cell, summary in summaries.items():
            if summary is not None and has_ended(summary, repeat_failed=repeat_failed):
                progress.keep(cell, summary)
            else:
                cells.append(cell)
        settings, seconds = plan.settings.as_dict(), plan.settings.timeout_seconds
        workers = [
            Worker(settings, output / LOG, lock, seconds) for _ in range(min(jobs, len(cells)))
        ]
        call = _Call(plan, output, manifest, summaries, progress)
        return call.complete(cells, workers)


class _Call:
    """One call of `run_sweep`."""

    def __init__(
        self,
        plan: SweepPlan,
        output: Path,
        manifest: dict[str, Any],
        summaries: dict[Cell, CellSummary | None],
        progress: Progress,
    ) -> None:
        self._plan, self._output, self._manifest = plan, output, manifest
        self._summaries, self._progress = summaries, progress
        self._cells: list[Cell] = []  # to run
        self._seeds: list[int] = []  # whose weights are to be prepared
        self._prepared: set[int] = set()
        self._running: dict[Cell, float] = {}  # since when
        self._stopping = False
        self._error: Exception | None = None
        self._changed = threading.Condition()

    def complete(self, cells: list[Cell], workers: list[Worker]) -> SweepResult:
        """Run *cells* in *workers*, a thread for each, until all have ended or one cannot."""
        self._cells, self._seeds = cells, list(dict.fromkeys(cell.seed for cell in cells))
        began, interrupted = time.monotonic(), False
        threads = [threading.Thread(target=self._work, args=(each,)) for each in workers]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads) and self._error is None:
                threads[0].join(_TICK_SECONDS)
                time.sleep(_TICK_SECONDS)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self._stop(workers, threads)
        if interrupted:
            self._mark_interrupted()
        result = SweepResult(
            summaries=self._summaries, seconds=time.monotonic() - began, interrupted=interrupted
        )
        if self._error is not None and not interrupted:
            with suppress(OSError):  # it may be why the sweep ends
                self._write_summary(result)
            raise self._error
        self._write_summary(result)
        return result

    def _stop(self, workers: list[Worker], threads: list[threading.Thread]) -> None:
        with self._changed:
            self._stopping = True
            self._cells.clear()
            self._seeds.clear()
            self._changed.notify_all()
        for worker in workers:
            worker.stop()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        for worker in workers:
            worker.wait()

    def _work(self, worker: Worker) -> None:
        """Take tasks until there are none."""
        try:
            while (task := self._next()) is not None:
                if isinstance(task, Cell):
                    self._run_cell(worker, task)
                else:
                    self._prepare(worker, task)
        except Exception as error:
            with self._changed:
                if not self._stopping:
                    self._error = self._error or error

    def _next(self) -> Cell | int | None:
        """A seed whose weights are to be prepared, or a cell, or None at the end."""
        with self._changed:
            while True:
                if self._seeds:
                    return self._seeds.pop(0)
                for cell in self._cells:
                    if cell.seed in self._prepared:
                        self._cells.remove(cell)
                        self._running[cell] = time.monotonic()
                        return cell
                if not self._cells:
                    return None
                self._changed.wait()

    def _prepare(self, worker: Worker, seed: int) -> None:
        path = self._plan.weights_of(self._output, seed)
        request = {"task": "prepare", "seed": seed, "weights": str(path)}
        found = worker.ask(request)
        with self._changed:
            known = self._manifest["initial_weights"].setdefault(str(seed), found)
            if known != found:
                raise LabError(
                    f"{path} has other weights than the sweep began with, so new cells could not "
                    "be compared with those that have ended: restore it, or choose another folder"
                )
            self._plan.write_manifest(self._output, self._manifest)
            self._prepared.add(seed)
            self._changed.notify_all()

    def _run_cell(self, worker: Worker, cell: Cell) -> None:
        folder = CellFolder.of(self._output, cell.preset, cell.seed)
        request = {
            "task": "cell",
            "preset": cell.preset,
            "seed": cell.seed,
            "folder": str(folder.path),
            "weights": str(self._plan.weights_of(self._output, cell.seed)),
            "initial_weights": self._manifest["initial_weights"][str(cell.seed)],
        }
        try:
            worker.ask(request, lambda number: self._progress.step(cell, number))
        except WorkerDiedError as error:
            if self._stopping:
                raise
            folder.finish(self._of_dead_worker(cell, folder, error))
        summary = folder.summary()
        if summary is None:
            raise RuntimeError(f"{folder.path}: the worker has written no summary")
        with self._changed:
            self._summaries[cell] = summary
            del self._running[cell]
            if summary.environment and not self._manifest["environment"]:
                self._manifest["environment"] = dict(summary.environment)
                self._plan.write_manifest(self._output, self._manifest)
        self._progress.end(cell, summary)

    def _of_dead_worker(
        self, cell: Cell, folder: CellFolder, error: WorkerDiedError
    ) -> CellSummary:
        kind, reason = FailureKind.UNKNOWN, str(error)
        if error.timed_out:
            kind = FailureKind.TIMEOUT
            reason = f"no end after {self._plan.settings.timeout_seconds:.0f} s; killed"
        elif error.out_of_memory:
            kind = FailureKind.OUT_OF_MEMORY
            reason += ": the kernel was killing processes for lack of memory"
        return self._unfinished(cell, folder, kind.value, reason)

    def _unfinished(
        self, cell: Cell, folder: CellFolder, category: str, reason: str
    ) -> CellSummary:
        updates = 0
        with suppress(ResultsError):
            updates = len(folder.steps())
        return CellSummary(
            preset=cell.preset,
            seed=cell.seed,
            category=category,
            reason=reason,
            updates=updates,
            planned_updates=self._plan.settings.updates,
            seconds=time.monotonic() - self._running[cell],
            cpu_seconds=0.0,
            initial_weights=self._manifest["initial_weights"][str(cell.seed)],
        )

    def _mark_interrupted(self) -> None:
        for cell in list(self._running):
            folder = CellFolder.of(self._output, cell.preset, cell.seed)
            if folder.summary() is None:
                reason = "interrupted by the user; it runs again in the next call"
                folder.finish(self._unfinished(cell, folder, INTERRUPTED, reason))
            self._summaries[cell] = folder.summary()

    def _write_summary(self, result: SweepResult) -> None:
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
        content = {
            "interrupted": result.interrupted,
            "seconds": result.seconds,
            "counts": result.counts,
            "cells": cells,
        }
        write_json(self._output / SWEEP_SUMMARY, content)


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
