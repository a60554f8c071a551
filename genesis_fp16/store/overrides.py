"""Operators' overrides of precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from sqlalchemy import ColumnElement, Connection, Engine, insert, or_, select, update

from genesis_fp16.precision_policy import Override
from genesis_fp16.store.audit_trail import Change, write_audit
from genesis_fp16.store.database import reading
from genesis_fp16.store.row_reader import RowReader
from genesis_fp16.store.schema import audit, overrides


class Overrides:
    """One override in force per scope: an agent, or all.

    One for the next run leaves the one before it to the runs under way; both end together.

    Args:
        engine: A migrated database.
        clock: Unix time in seconds.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._as_overrides = RowReader(overrides, Override, "the override has no say")

    def set(self, override: Override) -> None:
        """Put *override* in force instead of an earlier one of the same scope; audited."""
        change = Change(
            override.actor,
            "precision set",
            override.agent or "all",
            override.reason,
            {
                "precision": override.precision,
                "expires_at": override.expires_at,
                "next_run": override.next_run,
            },
        )
        with self._engine.begin() as connection:
            if not override.next_run:
                self._withdraw(connection, override.agent)
            elif override.expires_at is not None:
                self._shorten(connection, override.agent, override.expires_at)
            connection.execute(insert(overrides).values(asdict(override)))
            write_audit(connection, self._clock(), change)

    def clear(self, agent: str | None, *, actor: str, reason: str) -> bool:
        """Withdraw the override of *agent* (None: the one of all); audited.

        Returns:
            False if there was none in force.
        """
        with self._engine.begin() as connection:
            withdrawn = self._withdraw(connection, agent)
            if withdrawn:
                change = Change(actor, "precision clear", agent or "all", reason)
                write_audit(connection, self._clock(), change)
        return withdrawn

    def in_force(self) -> list[Override]:
        """Those neither withdrawn nor expired, the oldest first."""
        query = select(overrides).where(self._is_in_force()).order_by(overrides.c.id)
        with reading(self._engine) as connection:
            return self._as_overrides(connection.execute(query).mappings())

    def audit(self, limit: int = 50) -> list[Change]:
        """The newest changes, newest first."""
        columns = [audit.c[name] for name in Change.__dataclass_fields__]
        query = select(*columns).order_by(audit.c.id.desc()).limit(limit)
        with reading(self._engine) as connection:
            return [Change(**row) for row in connection.execute(query).mappings()]

    def _is_in_force(self) -> ColumnElement[bool]:
        expiry = overrides.c.expires_at
        return overrides.c.withdrawn_at.is_(None) & or_(expiry.is_(None), expiry > self._clock())

    def _shorten(self, connection: Connection, agent: str | None, expires_at: float) -> None:
        """Let no earlier override of the scope come back when the newer one expires."""
        longer = overrides.c.expires_at.is_(None) | (overrides.c.expires_at > expires_at)
        connection.execute(
            update(overrides)
            .where(self._is_in_force(), _scope(agent), longer)
            .values(expires_at=expires_at)
        )

    def _withdraw(self, connection: Connection, agent: str | None) -> bool:
        done = connection.execute(
            update(overrides)
            .where(self._is_in_force(), _scope(agent))
            .values(withdrawn_at=self._clock())
        )
        return done.rowcount > 0


def _scope(agent: str | None) -> ColumnElement[bool]:
    return overrides.c.agent.is_(None) if agent is None else overrides.c.agent == agent
