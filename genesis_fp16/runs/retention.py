"""Retention: keeps an agent's newest ended runs; the others lose their weights, then their folder.

The weights in a run's folder only serve to resume that run, and an ended run is never resumed; the
model in use is a copy in the agent's folder. Logs and events stay longer. Permanent records are
elsewhere: transitions with the agent, evidence with the guard, the outcome of a run in the store.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, TypeAlias

import structlog
from sqlalchemy.exc import SQLAlchemyError

from genesis_fp16.domain.guard import GuardState
from genesis_fp16.domain.run import TERMINAL, RunState
from genesis_fp16.plugins.model_versions import kept_runs
from genesis_fp16.runs.run_folder import (
    RUN_ID,
    delete,
    is_folder,
    opened,
    remove_weights,
    weights_of,
)
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store, StoreError
from infrastructure.events import Event

WORK_SECONDS = 0.05  # of a round of the loop
MAX_DECISIONS = 1000  # of the guard, since its state was last `watching`
_DAY_SECONDS = 86400.0
_REMEDY = "let the daemon's user write there, or delete it yourself; the next start tries again"

_MEASURED = ("preflights", "profiles", "labs")  # folders of failed measurements

log = structlog.get_logger()


class _Ended(NamedTuple):
    """An ended run with a folder; small, since there may be many."""

    finished_at: float
    run_id: str
    agent: str
    has_weights: bool


_Removal: TypeAlias = Callable[[_Ended], Iterator[int]]  # yields the bytes freed by each step


class Retention:
    """Removes weights, then folders, of ended runs; an `EventListener` of the dispatcher.

    Of each agent, the newest `Settings.keep_runs` that have weights stay whole. The others lose
    their weights at once, and their folder `Settings.keep_run_days` after the run's end, unless
    they are among the newest `Settings.keep_runs` of any kind. Runs that an FP32 twin waits to
    repeat, or that a decision of the guard names since its state was last ``watching``, stay
    whole, too. Runs whose model is a kept version keep their folder, without the weights. Links are
    neither followed nor removed, also if one takes the place of a folder after it was looked at. A
    daemon's start also removes folders of failed measurements that are as old. The *clock* returns
    monotonic seconds.
    """

    def __init__(
        self, store: Store, settings: Settings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._keep, self._clock = store, settings.keep_runs, clock
        self._days = settings.keep_run_days
        self._home = settings.home.absolute()
        self._runs = self._home / "runs"
        names = (folder.name for folder in self._runs.glob("*"))
        self._to_inspect = {name for name in names if RUN_ID.fullmatch(name)}
        self._measurements = [
            folder for name in _MEASURED for folder in (self._home / name).glob("*")
        ]
        self._ended: dict[str, _Ended] = {}
        self._chosen = False
        self._to_remove: list[tuple[_Removal, _Ended]] = []
        self._under_way: Iterator[object] | None = None

    def on_event(self, agent: str, run_id: str, event: Event) -> None:
        """Ignore events; see `EventListener`."""

    def on_run_state(self, agent: str, run_id: str, state: RunState) -> None:
        """Remember a run that has ended."""
        del agent
        if state in TERMINAL:
            self._to_inspect.add(run_id)

    def tick(self) -> None:
        """Do one piece of work: inspect new runs, choose among all, or clean up one.

        A piece that takes longer than `WORK_SECONDS` goes on in the next call, or is taken up by
        the next daemon. If the store fails, the next call tries again. Any other error is logged,
        concerns only the folder at hand, and is tried again by the next daemon. Call it after the
        guard has stored its decisions.
        """
        piece, self._under_way = self._under_way or self._next_piece(), None
        until = self._clock() + WORK_SECONDS
        for _ in piece:
            if self._clock() >= until:
                self._under_way = piece
                return

    def _next_piece(self) -> Iterator[object]:
        if self._to_inspect:
            return self._inspect_new()
        if not self._chosen:
            return self._choose()
        if self._to_remove:
            return self._remove_next()
        return self._remove_measurement()

    def _inspect_new(self) -> Iterator[None]:
        self._chosen = False
        while self._to_inspect:
            run_id = next(iter(self._to_inspect))
            with _logging_errors(self._runs / run_id):
                self._inspect(run_id)
            self._to_inspect.remove(run_id)
            yield

    def _choose(self) -> Iterator[None]:
        """Note each removal to make, newest first within each agent."""
        self._to_remove = []
        with _logging_errors(self._runs):
            of_agent: defaultdict[str, list[_Ended]] = defaultdict(list)
            for ended in sorted(self._ended.values(), reverse=True):
                of_agent[ended.agent].append(ended)
            for agent, newest_first in of_agent.items():
                self._to_remove += self._superseded(agent, newest_first)
                yield
        self._chosen = True

    def _remove_next(self) -> Iterator[int]:
        remove, ended = self._to_remove[-1]
        with _logging_errors(self._runs / ended.run_id):
            yield from remove(ended)
        self._to_remove.pop()

    def _remove_measurement(self) -> Iterator[int]:
        if not self._measurements:
            return
        folder = self._measurements.pop()
        with _logging_errors(folder):
            if folder.lstat().st_mtime < self._age_limit():
                with self._opened(folder.parent.name) as measurements:
                    yield from delete(measurements, folder.name)

    def _inspect(self, run_id: str) -> None:
        folder = self._runs / run_id
        if not is_folder(folder):
            return
        has_weights = bool(weights_of(folder))
        run = self._store.run(run_id) if has_weights or self._days else None
        if run is not None and run.finished:
            ended_at = run.finished_at or 0.0
            _day(ended_at)
            self._ended[run_id] = _Ended(ended_at, run_id, run.agent, has_weights)

    def _superseded(
        self, agent: str, newest_first: list[_Ended]
    ) -> Iterator[tuple[_Removal, _Ended]]:
        """Yield each removal to make among the ended runs of *agent*."""
        history = self._store.guard.history(agent, MAX_DECISIONS)
        still_open = takewhile(lambda decision: decision.state is not GuardState.WATCHING, history)
        whole = {decision.run_id for decision in still_open}
        whole |= {twin.baseline_of or "" for twin in self._store.unfinished(agent)}
        published = kept_runs(self._home / "agents" / agent)
        newest = [ended for ended in newest_first if ended.has_weights][: self._keep]
        whole |= {ended.run_id for ended in newest}
        age_limit = self._age_limit()
        for place, ended in enumerate(newest_first):
            if ended.run_id in whole:
                continue
            aged = place >= self._keep and ended.finished_at < age_limit
            if aged and ended.run_id not in published:
                yield self._remove_folder, ended
            elif ended.has_weights:
                yield self._remove_weights, ended

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        """Open a folder of the home. The home may be a link, which its owner has made."""
        with opened(self._home) as home, opened(name, home) as folder:
            yield folder

    def _age_limit(self) -> float:
        """Unix time before which a run must have ended for its folder to be removed."""
        return self._store.now() - self._days * _DAY_SECONDS if self._days else -math.inf

    def _remove_weights(self, ended: _Ended) -> Iterator[int]:
        self._ended[ended.run_id] = ended._replace(has_weights=False)
        today = _day(self._store.now())
        reason = (
            f"removed on {today}: not among the agent's newest (GENESIS_KEEP_RUNS={self._keep})"
        )
        freed = 0
        with self._opened("runs") as runs, opened(ended.run_id, runs) as folder:
            for size in remove_weights(folder, reason):
                freed += size
                yield size
        log.info("weights_removed", agent=ended.agent, run_id=ended.run_id, freed_bytes=freed)

    def _remove_folder(self, ended: _Ended) -> Iterator[int]:
        """Record the removal first: a folder that is still there after it can be found."""
        self._store.record_folder_removed(
            ended.run_id,
            f"removed on {_day(self._store.now())}: the run had ended on "
            f"{_day(ended.finished_at)}, over GENESIS_KEEP_RUN_DAYS={self._days} days before, and "
            f"was not among the agent's newest (GENESIS_KEEP_RUNS={self._keep})",
        )
        del self._ended[ended.run_id]
        freed = 0
        with self._opened("runs") as runs:
            for size in delete(runs, ended.run_id):
                freed += size
                yield size
        if freed:  # 0 if only links are left: logged before
            fields = {"agent": ended.agent, "run_id": ended.run_id}
            log.info("run_folder_removed", **fields, freed_bytes=freed)


def _day(moment: float) -> date:
    try:
        return datetime.fromtimestamp(moment, UTC).date()
    except (OSError, OverflowError, ValueError) as error:
        raise ValueError(f"the run's end, {moment}, is outside the calendar") from error


@contextmanager
def _logging_errors(folder: Path) -> Iterator[None]:
    """Log an error of the block, which leaves *folder* as it is; errors of the store pass."""
    try:
        yield
    except (SQLAlchemyError, StoreError):
        raise
    except Exception as error:  # strange files in one folder must not hold up the others
        log.warning("run_files_not_removed", folder=str(folder), error=str(error), remedy=_REMEDY)
