"""The guard's decisions: a journal in which the last entry of an agent stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from sqlalchemy import Engine, insert, select

from genesis_fp16.domain.guard import GUARD, Decision
from genesis_fp16.store.audit_trail import Change, write_audit
from genesis_fp16.store.database import reading
from genesis_fp16.store.row_reader import RowReader
from genesis_fp16.store.schema import guard_decisions


class GuardDecisions:
    """Safe to use from several processes at once: entries are added and never changed.

    Args:
        engine: A migrated database.
        clock: Unix time in seconds.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._as_decisions = RowReader(
            guard_decisions, Decision, "the agent's earlier decision stands"
        )

    def add(self, decision: Decision) -> None:
        """Append *decision*; an operator's is audited."""
        with self._engine.begin() as connection:
            connection.execute(insert(guard_decisions).values(asdict(decision)))
            if decision.actor != GUARD:
                change = Change(decision.actor, "guard clear", decision.agent, decision.reason)
                write_audit(connection, self._clock(), change)

    def since(self, entry: int) -> tuple[int, list[Decision]]:
        """Entries after the one numbered *entry*, oldest first, and the number of the last."""
        query = select(guard_decisions).where(guard_decisions.c.id > entry)
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(guard_decisions.c.id)).mappings().all()
        return (rows[-1]["id"] if rows else entry), self._as_decisions(rows)

    def latest(self) -> dict[str, Decision]:
        """Agent to the last decision on it."""
        return {decision.agent: decision for decision in self.since(0)[1]}

    def history(self, agent: str, limit: int = 20) -> list[Decision]:
        """Decisions on *agent*, newest first."""
        query = select(guard_decisions).where(guard_decisions.c.agent == agent)
        newest = query.order_by(guard_decisions.c.id.desc()).limit(limit)
        with reading(self._engine) as connection:
            return self._as_decisions(connection.execute(newest).mappings())
