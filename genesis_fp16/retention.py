"""Retention: of an agent's ended runs only the newest keep their weights.

Weights serve the resuming of their own run, and an ended run is never resumed; the model in use
is a copy in the agent's folder. Logs, events, the snapshot of the data and the store's rows stay.
"""

from __future__ import annotations

import re
import stat
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice, takewhile
from pathlib import Path

import structlog

from genesis_fp16.guard.trigger import GuardState
from genesis_fp16.settings import Settings
from genesis_fp16.store import Run, Store
from infrastructure.events import Event

REMOVED = "weights-removed.txt"  # lies in the folder of a run and says so
BITE = 100  # runs looked at in one round of the loop: some 0.1 s
MOST_DECISIONS = 1000  # of the guard, since it last watched undisturbed
_WEIGHTS = re.compile(r"checkpoints(\.set-aside-\d+)?|best-epoch\.pt|\.best-epoch\.pt\..+")
_REMEDY = "let the daemon's user write there, or delete its checkpoints; tried at the next start"

log = structlog.get_logger()


class Retention:
    """Removes the weights of ended runs; an `EventListener` of the dispatcher.

    Those of the newest `Settings.keep_runs` that have any stay, agent by agent. So do those of
    runs that an FP32 twin waits to repeat, or that the guard has named since it last stood at
    ``watching``. Links are neither followed nor removed.

    Args:
        store: Knows which runs have ended, and what refers to them.
        settings: Name the home; say how many runs keep their weights.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._keep = store, settings.keep_runs
        self._runs = settings.home.absolute() / "runs"
        self._to_look_at = {each.name for each in self._runs.glob("*")}
        self._ended: dict[str, Run] = {}  # and with weights
        self._chosen = False
        self._doomed: list[Run] = []

    def on_event(self, agent: str, run_id: str, event: Event) -> None:
        """See `EventListener`: nothing to do."""

    def on_run_state(self, agent: str, run_id: str, state: str, result: str | None) -> None:
        """Remember runs that have ended."""
        del agent, state
        if result is not None:
            self._to_look_at.add(run_id)

    def tick(self) -> None:
        """Do a bite: look at some runs, choose among all, or remove the weights of one.

        Where the store fails, the next call tries again; where the disk does, the next daemon.
        Call it when the guard has written down what it has decided.
        """
        if self._to_look_at:
            self._chosen = False
            for run_id in list(islice(self._to_look_at, BITE)):
                self._look_at(run_id)
                self._to_look_at.remove(run_id)
        elif not self._chosen:
            self._doomed = list(self._too_old())
            self._chosen = True
        elif self._doomed:
            self._remove(self._doomed.pop())

    def _look_at(self, run_id: str) -> None:
        try:
            run = self._store.run(run_id) if _weights(self._runs / run_id) else None
        except OSError as error:
            _tell_of_failure(self._runs / run_id, error)
        else:
            if run is not None and run.finished:
                self._ended[run_id] = run

    def _too_old(self) -> Iterator[Run]:
        """Runs that are to lose their weights, newest first within each agent."""
        of_agent: defaultdict[str, list[Run]] = defaultdict(list)
        newest = sorted(
            self._ended.values(), key=lambda r: (r.finished_at or 0, r.id), reverse=True
        )
        for run in newest:
            of_agent[run.agent].append(run)
        for agent, newest_first in of_agent.items():
            history = self._store.guard.history(agent, MOST_DECISIONS)
            still_open = takewhile(lambda each: each.state is not GuardState.WATCHING, history)
            needed = {decision.run_id for decision in still_open}
            needed |= {twin.baseline_of or "" for twin in self._store.unfinished(agent)}
            yield from (run for run in newest_first[self._keep :] if run.id not in needed)

    def _remove(self, run: Run) -> None:
        del self._ended[run.id]
        folder = self._runs / run.id
        try:
            freed = sum(_delete(path) for path in _weights(folder))
            day = datetime.fromtimestamp(self._store.now(), UTC).date()
            with (folder / REMOVED).open("x") as said:
                said.write(
                    f"removed on {day}, GENESIS_KEEP_RUNS={self._keep} newer runs have ended\n"
                )
        except OSError as error:
            _tell_of_failure(folder, error)
        else:
            log.info("weights_removed", agent=run.agent, run_id=run.id, freed_bytes=freed)


def why_removed(run_folder: Path) -> str:
    """What retention has left word of in the folder of a run; empty where it removed nothing."""
    with suppress(OSError, ValueError):
        return (run_folder / REMOVED).read_text().strip()
    return ""


def _weights(run_folder: Path) -> list[Path]:
    """Files and folders that hold weights and were not dealt with yet; OSError passes."""
    if run_folder.is_symlink() or not run_folder.is_dir() or (run_folder / REMOVED).exists():
        return []
    found = [path for path in run_folder.iterdir() if _WEIGHTS.fullmatch(path.name)]
    return [path for path in found if not path.is_symlink()]


def _delete(path: Path) -> int:
    """Delete *path* with everything in it but links; the bytes freed."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        return 0
    if not stat.S_ISDIR(found.st_mode):
        path.unlink()
        return found.st_size
    freed = sum([_delete(child) for child in path.iterdir()])
    if not any(path.iterdir()):
        path.rmdir()
    return freed


def _tell_of_failure(folder: Path, error: OSError) -> None:
    log.warning("weights_not_removed", folder=str(folder), error=str(error), remedy=_REMEDY)
