"""What happened to all agents within a span of time: runs, and rollbacks to FP32."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, Select, or_, select

from genesis_fp16.domain.guard import GuardState
from genesis_fp16.domain.run import RunState
from genesis_fp16.store import schema
from genesis_fp16.store.database import read_connection
from genesis_fp16.store.rows import RowReader, is_number

MOST_RUNS = 20_000  # of one answer, the newest
_columns = schema.runs.c


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSpan:
    """When a run was under way, in Unix seconds; *finished_at* is None while it is."""

    agent: str
    number: int
    state: RunState
    started_at: float
    finished_at: float | None
    fell_back_at: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RollbackAt:
    """A rollback to FP32: by the guard, or by an operator's override; *agent* None means all."""

    agent: str | None
    at: float
    by: str
    reason: str


class Timeline:
    """Reads spans and rollbacks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._as_spans = RowReader(schema.runs, RunSpan, "the run is not on the time line")

    def agents(self, since: float, until: float) -> set[str]:
        """Agents with a run under way between *since* and *until*."""
        with read_connection(self._engine) as connection:
            return set(
                connection.scalars(_under_way(select(_columns.agent), since, until).distinct())
            )

    def runs(self, since: float, until: float, agents: Collection[str]) -> list[RunSpan]:
        """Runs of *agents* under way in that time, oldest first; the newest `MOST_RUNS`."""
        query = (
            _under_way(select(schema.runs), since, until)
            .with_only_columns(*(_columns[name] for name in ("id", *RunSpan.__dataclass_fields__)))
            .where(_columns.agent.in_(agents))
            .order_by(_columns.started_at.desc())
            .limit(MOST_RUNS)
        )
        with read_connection(self._engine) as connection:
            return self._as_spans(connection.execute(query).mappings())[::-1]

    def rollbacks(self, since: float, until: float) -> list[RollbackAt]:
        """Trips of the guard and operators' overrides to FP32 in that time, oldest first."""
        decisions, overrides = schema.guard_decisions.c, schema.overrides.c
        trips = select(decisions.agent, decisions.at, decisions.reason).where(
            decisions.state == GuardState.TRIPPED.value,
            is_number(decisions.at),
            decisions.at.between(since, until),
        )
        by_hand = select(
            overrides.agent, overrides.created_at, overrides.actor, overrides.reason
        ).where(
            overrides.precision == "fp32",
            is_number(overrides.created_at),
            overrides.created_at.between(since, until),
        )
        with read_connection(self._engine) as connection:
            found = [
                RollbackAt(agent=agent, at=at, by="guard", reason=str(reason))
                for agent, at, reason in connection.execute(trips)
            ] + [
                RollbackAt(agent=agent, at=at, by=str(actor), reason=str(reason))
                for agent, at, actor, reason in connection.execute(by_hand)
            ]
        return sorted(found, key=lambda rollback: rollback.at)


def _under_way(query: Select[Any], since: float, until: float) -> Select[Any]:
    ended = or_(_columns.finished_at.is_(None), _columns.finished_at >= since)
    return query.where(_columns.started_at < until, ended)
