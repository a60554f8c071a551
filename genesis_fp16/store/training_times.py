"""How long and how recently agents have trained, for the queue and for quotas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

from sqlalchemy import Engine, func, select

from genesis_fp16.domain.run import RunState
from genesis_fp16.store import schema
from genesis_fp16.store.database import read_connection
from genesis_fp16.store.rows import is_number

TYPICAL_RUNS = 5  # newest successful runs whose mean is typical

_runs, _attempts = schema.runs.c, schema.attempts.c


class TrainingTimes:
    """Reads times of attempts and runs; all in seconds."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._engine, self._clock = engine, clock

    def last_started(self) -> dict[str, float]:
        """Agent to the start of its newest attempt, in Unix time."""
        query = (
            select(_runs.agent, func.max(_attempts.started_at))
            .join_from(schema.attempts, schema.runs)
            .where(is_number(_attempts.started_at))
            .group_by(_runs.agent)
        )
        with read_connection(self._engine) as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    def trained_since(self, since: float, agents: Collection[str]) -> dict[str, float]:
        """Agent to the seconds that its attempts have taken since the Unix time *since*."""
        query = (
            select(
                _runs.agent, _attempts.started_at, _attempts.finished_at, _attempts.waited_seconds
            )
            .join_from(schema.attempts, schema.runs)
            .where(
                _runs.agent.in_(agents),
                _attempts.finished_at.is_(None)
                | ((_attempts.finished_at > since) & is_number(_attempts.finished_at)),
                is_number(_attempts.started_at),
                is_number(_attempts.waited_seconds),
            )
        )
        now, trained = self._clock(), defaultdict[str, float](float)
        with read_connection(self._engine) as connection:
            for agent, started_at, finished_at, waited_seconds in connection.execute(query):
                end = now if finished_at is None else min(finished_at, now)
                trained[agent] += max(0.0, end - max(started_at + waited_seconds, since))
        return dict(trained)

    def typical(self, agents: Collection[str]) -> dict[str, float]:
        """Agent to the mean time of its newest successful runs; without those that have none."""
        newest_first = func.row_number().over(
            partition_by=_runs.agent, order_by=_runs.created_at.desc()
        )
        newest = (
            select(_runs.agent, _runs.active_seconds, newest_first.label("place"))
            .where(
                _runs.agent.in_(agents),
                _runs.state == RunState.SUCCEEDED.value,
                is_number(_runs.active_seconds),
            )
            .subquery()
        )
        query = (
            select(newest.c.agent, func.avg(newest.c.active_seconds))
            .where(newest.c.place <= TYPICAL_RUNS)
            .group_by(newest.c.agent)
        )
        with read_connection(self._engine) as connection:
            return {agent: float(seconds) for agent, seconds in connection.execute(query)}
