"""Which due runs share a worker, where there are fewer free slots than due runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from genesis_fp16.domain.last_training import LastTraining
from genesis_fp16.domain.run import Run
from genesis_fp16.plugins.agent_folder import read_last_training
from genesis_fp16.settings import Settings

MOST_DUE = 64  # due runs that one round of the dispatcher looks at
MOST_MEMBERS = 16
LONGEST_COLLECT_SECONDS = 10.0
"""Longest that an agent of a fleet may have collected in its last run.

The agents of a fleet collect one after the other, before any of them trains: 16 of them stay
below the default ``GENESIS_NO_PROGRESS_TIMEOUT_SECONDS``.
"""


@dataclass(slots=True)
class _Worker:
    runs: list[Run]
    shape: str = ""
    seconds: float = 0.0  # that its trainings took the last time


def share_workers(due: Sequence[Run], free: int, settings: Settings) -> list[list[Run]]:
    """Distribute *due* runs, the longest due first, to workers; the first *free* of them may start.

    Runs share a worker if their agents' last trainings had one shape, and only while there are
    more workers than *free* slots: workers side by side are faster than a fleet. The trainings of
    a fleet took less than half of the run's deadline the last time. Only the first attempt of a
    run joins a fleet: after a failure it trains alone.
    """
    if settings.fleet == "off" or len(due) <= free:
        return [[run] for run in due]
    workers: list[_Worker] = []
    for run in due:
        last = _last_training(run, settings)
        if last is None:
            workers.append(_Worker([run]))
            continue
        for worker in workers:
            seconds = worker.seconds + last.train_seconds
            fits = len(worker.runs) < MOST_MEMBERS and seconds < settings.run_timeout_seconds / 2
            if worker.shape == last.shape and fits:
                worker.runs.append(run)
                worker.seconds = seconds
                break
        else:
            workers.append(_Worker([run], last.shape, last.train_seconds))
    shared = [worker.runs for worker in workers]
    while len(shared) < free:  # some are fleets, since there are more runs than free slots
        largest = max(range(len(shared)), key=lambda i: len(shared[i]))
        runs, half = shared[largest], len(shared[largest]) // 2
        shared[largest : largest + 1] = [runs[:half], runs[half:]]
    return shared


def _last_training(run: Run, settings: Settings) -> LastTraining | None:
    """Last training of the agent of *run*, if the run may join a fleet."""
    if run.started_at is not None or settings.for_agent(run.agent).processes_per_run > 1:
        return None
    last = read_last_training(settings.home.absolute() / "agents" / run.agent)
    if last is None or not last.shape or last.collect_seconds > LONGEST_COLLECT_SECONDS:
        return None
    return last
