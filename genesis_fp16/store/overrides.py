"""Operators' overrides of precision; what cannot be read of one counts for FP32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    RowMapping,
    insert,
    not_,
    or_,
    select,
    update,
)

from genesis_fp16.domain.precision import Override, is_agent_name
from genesis_fp16.store.audit_trail import Change, write_audit
from genesis_fp16.store.database import reading
from genesis_fp16.store.row_reader import RowReader, is_number
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
        self._as_overrides = RowReader(
            overrides, Override, "FP32 for whom it concerns, until it is corrected or cleared"
        )
        self._as_changes = RowReader(audit, Change, "the change is not told")

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
        """Those neither withdrawn nor expired, the oldest first.

        One that cannot be read demands FP32, for all where it is not told whom it concerns; such
        ones come last, as the newest word of their scope.
        """
        with reading(self._engine) as connection:
            return [override for _, override in self._standing(connection)]

    def audit(self, limit: int = 50) -> list[Change]:
        """The newest changes, newest first."""
        query = select(audit).order_by(audit.c.id.desc()).limit(limit)
        with reading(self._engine) as connection:
            return self._as_changes(connection.execute(query).mappings())

    def _standing(self, connection: Connection) -> list[tuple[int, Override]]:
        """What is in force, by the number of its row."""
        query = select(overrides).where(self._is_in_force()).order_by(overrides.c.id)
        read, unreadable = [], []
        for row in connection.execute(query).mappings():
            withdrawn = row["withdrawn_at"] is not None  # if so it is no time, and unreadable
            if not withdrawn and (override := self._as_overrides.one(row)) is not None:
                read.append((row["id"], override))
            else:
                unreadable.append((row["id"], _in_its_place(row)))
        return read + unreadable

    def _is_in_force(self) -> ColumnElement[bool]:
        withdrawn, expiry = overrides.c.withdrawn_at, overrides.c.expires_at
        standing = withdrawn.is_(None) | not_(is_number(withdrawn))
        return standing & or_(expiry.is_(None), expiry > self._clock())

    def _shorten(self, connection: Connection, agent: str | None, expires_at: float) -> None:
        """Let no earlier override of the scope come back when the newer one expires."""
        longer = overrides.c.expires_at.is_(None) | (overrides.c.expires_at > expires_at)
        connection.execute(
            update(overrides)
            .where(self._is_in_force(), _scope(agent), longer)
            .values(expires_at=expires_at)
        )

    def _withdraw(self, connection: Connection, agent: str | None) -> bool:
        standing = [row for row, each in self._standing(connection) if each.agent == agent]
        connection.execute(
            update(overrides).where(overrides.c.id.in_(standing)).values(withdrawn_at=self._clock())
        )
        return bool(standing)


def _in_its_place(row: RowMapping) -> Override:
    """FP32 instead of an override that cannot be read, with what can be read of it."""
    agent, created_at, expires_at = row["agent"], row["created_at"], row["expires_at"]
    return Override(
        agent=agent if is_agent_name(agent) else None,
        precision="fp32",
        reason=f"override {row['id']} cannot be read, correct or clear it; it says {row['reason']}",
        actor=str(row["actor"]),
        created_at=created_at if isinstance(created_at, float) else 0.0,
        expires_at=expires_at if isinstance(expires_at, float) else None,
    )


def _scope(agent: str | None) -> ColumnElement[bool]:
    return overrides.c.agent.is_(None) if agent is None else overrides.c.agent == agent
