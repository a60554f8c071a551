"""Retention: of an agent's ended runs the newest stay whole; the others lose weight, then all.

Weights serve the resuming of their own run, and an ended run is never resumed; the model in use
is a copy in the agent's folder. Logs and events stay as long as somebody may ask. What is recorded
for good lies elsewhere: transitions with the agent, the guard's evidence with the guard, and what
came of a run in the store.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from itertools import islice, takewhile
from pathlib import Path
from typing import NamedTuple

import structlog
from sqlalchemy.exc import SQLAlchemyError

from genesis_fp16.domain.guard import GuardState
from genesis_fp16.domain.run import TERMINAL, RunState
from genesis_fp16.runs.run_folder import RUN_ID, delete, is_folder, remove_weights, weights_of
from genesis_fp16.settings.settings import Settings
from genesis_fp16.store import Store, StoreError
from infrastructure.events import Event

BITE = 100  # runs looked at in one round of the loop: some 0.1 s
MOST_DECISIONS = 1000  # of the guard, since it last watched undisturbed
_DAY_SECONDS = 86400.0
_REMEDY = "let the daemon's user write there, or delete it yourself; tried at the next start"

log = structlog.get_logger()


class _Ended(NamedTuple):
    """An ended run with a folder; there may be many, so that nothing else is kept of them."""

    finished_at: float
    run_id: str
    agent: str
    heavy: bool  # holds weights


class Retention:
    """Removes weights, then folders, of ended runs; an `EventListener` of the dispatcher.

    Agent by agent, the newest `Settings.keep_runs` that have weights stay whole. Of the others
    the weights go at once, and the folder `Settings.keep_run_days` after the run's end, unless it
    is among the newest `Settings.keep_runs` of any kind. Runs that an FP32 twin waits to repeat,
    or that the guard has named since it last stood at ``watching``, stay whole too. Links are
    neither followed nor removed. At a daemon's start the folders go that measurements have left
    behind when they failed, as long ago.

    Args:
        store: Knows which runs have ended, and what refers to them.
        settings: Name the home; say what is kept.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._keep = store, settings.keep_runs
        self._days = settings.keep_run_days
        home = settings.home.absolute()
        self._runs = home / "runs"
        names = (each.name for each in self._runs.glob("*"))
        self._to_look_at = {name for name in names if RUN_ID.fullmatch(name)}
        self._leftovers = list((home / "preflights").glob("*"))
        self._ended: dict[str, _Ended] = {}
        self._chosen = False
        self._doomed: list[tuple[Callable[[_Ended], None], _Ended]] = []

    def on_event(self, agent: str, run_id: str, event: Event) -> None:
        """See `EventListener`: nothing to do."""

    def on_run_state(self, agent: str, run_id: str, state: RunState) -> None:
        """Remember runs that have ended."""
        del agent
        if state in TERMINAL:
            self._to_look_at.add(run_id)

    def tick(self) -> None:
        """Do a bite: look at some runs, choose among all, or remove what is to go of one.

        Where the store fails, the next call tries again. Whatever else is wrong with a folder is
        logged, costs nothing but that folder, and is tried again by the next daemon. Call it when
        the guard has written down what it has decided.
        """
        if self._to_look_at:
            self._chosen = False
            for run_id in list(islice(self._to_look_at, BITE)):
                with _at_the_cost_of(self._runs / run_id):
                    self._look_at(run_id)
                self._to_look_at.remove(run_id)
        elif not self._chosen:
            with _at_the_cost_of(self._runs):
                self._doomed = list(self._choose())
            self._chosen = True
        elif self._doomed:
            remove, ended = self._doomed[-1]
            with _at_the_cost_of(self._runs / ended.run_id):
                remove(ended)
            self._doomed.pop()
        elif self._leftovers:
            folder = self._leftovers.pop()
            with _at_the_cost_of(folder):
                if folder.lstat().st_mtime < self._long_ago():
                    delete(folder)

    def _look_at(self, run_id: str) -> None:
        folder = self._runs / run_id
        if not is_folder(folder):
            return
        heavy = bool(weights_of(folder))
        run = self._store.run(run_id) if heavy or self._days else None
        if run is not None and run.finished:
            ended_at = run.finished_at or 0.0
            _day(ended_at)
            self._ended[run_id] = _Ended(ended_at, run_id, run.agent, heavy)

    def _choose(self) -> Iterator[tuple[Callable[[_Ended], None], _Ended]]:
        """What is to be removed of which run, newest first within each agent."""
        of_agent: defaultdict[str, list[_Ended]] = defaultdict(list)
        for ended in sorted(self._ended.values(), reverse=True):
            of_agent[ended.agent].append(ended)
        long_ago = self._long_ago()
        for agent, newest_first in of_agent.items():
            history = self._store.guard.history(agent, MOST_DECISIONS)
            still_open = takewhile(lambda each: each.state is not GuardState.WATCHING, history)
            whole = {decision.run_id for decision in still_open}
            whole |= {twin.baseline_of or "" for twin in self._store.unfinished(agent)}
            whole |= {each.run_id for each in [e for e in newest_first if e.heavy][: self._keep]}
            for place, ended in enumerate(newest_first):
                if ended.run_id in whole:
                    continue
                if place >= self._keep and ended.finished_at < long_ago:
                    yield self._remove_folder, ended
                elif ended.heavy:
                    yield self._remove_weights, ended

    def _long_ago(self) -> float:
        """Unix time; the folders of runs that ended earlier are not kept for their age."""
        return self._store.now() - self._days * _DAY_SECONDS if self._days else -math.inf

    def _remove_weights(self, ended: _Ended) -> None:
        self._ended[ended.run_id] = ended._replace(heavy=False)
        today = _day(self._store.now())
        why = f"removed on {today}: not among the agent's newest (GENESIS_KEEP_RUNS={self._keep})"
        freed = remove_weights(self._runs / ended.run_id, why)
        log.info("weights_removed", agent=ended.agent, run_id=ended.run_id, freed_bytes=freed)

    def _remove_folder(self, ended: _Ended) -> None:
        """Recorded first: a folder of which it is said too early is still there to be found."""
        self._store.record_folder_removed(
            ended.run_id,
            f"removed on {_day(self._store.now())}: the run had ended on "
            f"{_day(ended.finished_at)}, over GENESIS_KEEP_RUN_DAYS={self._days} days before, and "
            f"was not among the agent's newest (GENESIS_KEEP_RUNS={self._keep})",
        )
        del self._ended[ended.run_id]
        if freed := delete(self._runs / ended.run_id):  # not again where but links are left
            fields = {"agent": ended.agent, "run_id": ended.run_id}
            log.info("run_folder_removed", **fields, freed_bytes=freed)


def _day(moment: float) -> date:
    try:
        return datetime.fromtimestamp(moment, UTC).date()
    except (OSError, OverflowError, ValueError) as error:
        raise ValueError(f"the run's end, {moment}, is no time of the calendar") from error


@contextmanager
def _at_the_cost_of(folder: Path) -> Iterator[None]:
    """End the block where it fails, and say that *folder* stays; errors of the store pass."""
    try:
        yield
    except (SQLAlchemyError, StoreError):
        raise
    except Exception as error:  # of files that anybody may have made: no run must wait for them
        log.warning("run_files_not_removed", folder=str(folder), error=str(error), remedy=_REMEDY)
