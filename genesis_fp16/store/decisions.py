"""Decisions on precision: operators' overrides, the guard's decisions, and the audit trail.

An engine is that of a migrated database, and a clock returns Unix time in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

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

from genesis_fp16.domain.guard import GUARD, Decision
from genesis_fp16.domain.precision import Override
from genesis_fp16.store.database import read_connection
from genesis_fp16.store.rows import RowReader, is_number
from genesis_fp16.store.schema import audit, guard_decisions, overrides
from infrastructure.agent_contract.agent import AGENT_NAME

KEEP = "models keep"  # the change by which an operator keeps a version in use


@dataclass(frozen=True, kw_only=True, slots=True)
class UnreadableOverride(Override):
    """Stands for a stored override that cannot be read; demands FP32."""


@dataclass(frozen=True, slots=True)
class Change:
    """An entry of the audit trail: what was changed by hand; *at* is set by the store."""

    actor: str
    action: str
    subject: str
    reason: str
    details: Mapping[str, object] = field(default_factory=dict)
    at: float = 0.0


def write_audit(connection: Connection, now: float, change: Change) -> None:
    """Append *change* to the audit trail within the caller's transaction."""
    connection.execute(insert(audit).values({**asdict(change), "at": now}))


class Overrides:
    """Operators' overrides: one in force per scope, which is an agent or all agents.

    An override for the next run leaves the one before it in force for runs under way; both end
    together. An override that cannot be read demands FP32.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._as_overrides = RowReader(
            overrides, Override, "its scope runs in FP32 until it is corrected or cleared"
        )
        self._as_changes = RowReader(audit, Change, "the change is not shown")

    def set(self, override: Override) -> None:
        """Put *override* in force and withdraw an earlier one of the same scope; audited."""
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
        """Withdraw the override of *agent* (None: the one for all agents); audited.

        Returns:
            False if there was none in force.
        """
        with self._engine.begin() as connection:
            withdrawn = self._withdraw(connection, agent)
            if withdrawn:
                change = Change(actor, "precision clear", agent or "all", reason)
                write_audit(connection, self._clock(), change)
        return withdrawn

    def restore(self, remembered: Sequence[Override]) -> list[Override]:
        """Put those of *remembered* in force again whose rows have vanished; audited.

        An override that was withdrawn or has expired stays so.
        """
        now, restored = self._clock(), []
        with self._engine.begin() as connection:
            for override in remembered:
                same = overrides.c.created_at == override.created_at
                known = select(overrides.c.id).where(_scope(override.agent), same)
                expired = override.expires_at is not None and override.expires_at <= now
                if expired or connection.execute(known).first() is not None:
                    continue
                connection.execute(insert(overrides).values(asdict(override)))
                change = Change(
                    override.actor,
                    "precision restored",
                    override.agent or "all",
                    "the daemon remembered it, but the database had lost it",
                    {"precision": override.precision, "reason": override.reason},
                )
                write_audit(connection, now, change)
                restored.append(override)
        return restored

    def in_force(self) -> list[Override]:
        """Overrides that are neither withdrawn nor expired, oldest first.

        One that cannot be read demands FP32, for all agents if its agent cannot be read either;
        such ones come last, as the newest of their scope.
        """
        with read_connection(self._engine) as connection:
            return [override for _, override in self._with_ids(connection)]

    def audit(self, limit: int = 50) -> list[Change]:
        """The newest changes, newest first."""
        query = select(audit).order_by(audit.c.id.desc()).limit(limit)
        with read_connection(self._engine) as connection:
            return self._as_changes(connection.execute(query).mappings())

    def kept_models(self) -> dict[str, str]:
        """Agent to the version of its model that an operator last kept in use."""
        query = select(audit.c.subject, audit.c.details).where(audit.c.action == KEEP)
        with read_connection(self._engine) as connection:
            rows = connection.execute(query.order_by(audit.c.id)).all()
        return {agent: str(details["version"]) for agent, details in rows if "version" in details}

    def _with_ids(self, connection: Connection) -> list[tuple[int, Override]]:
        """Overrides in force with the ids of their rows."""
        query = select(overrides).where(self._is_in_force()).order_by(overrides.c.id)
        read, unreadable = [], []
        for row in connection.execute(query).mappings():
            withdrawn = row["withdrawn_at"] is not None  # then not a time
            if not withdrawn and (override := self._as_overrides.one(row)) is not None:
                read.append((row["id"], override))
            else:
                unreadable.append((row["id"], _fp32_instead(row)))
        return read + unreadable

    def _is_in_force(self) -> ColumnElement[bool]:
        withdrawn, expiry = overrides.c.withdrawn_at, overrides.c.expires_at
        not_withdrawn = withdrawn.is_(None) | not_(is_number(withdrawn))
        return not_withdrawn & or_(expiry.is_(None), expiry > self._clock())

    def _shorten(self, connection: Connection, agent: str | None, expires_at: float) -> None:
        """Let earlier overrides of the scope expire no later than the newer one."""
        longer = overrides.c.expires_at.is_(None) | (overrides.c.expires_at > expires_at)
        connection.execute(
            update(overrides)
            .where(self._is_in_force(), _scope(agent), longer)
            .values(expires_at=expires_at)
        )

    def _withdraw(self, connection: Connection, agent: str | None) -> bool:
        ids = [row for row, override in self._with_ids(connection) if override.agent == agent]
        connection.execute(
            update(overrides).where(overrides.c.id.in_(ids)).values(withdrawn_at=self._clock())
        )
        return bool(ids)


def _fp32_instead(row: RowMapping) -> UnreadableOverride:
    """An override for FP32 instead of one that cannot be read, with its readable fields."""
    agent, created_at, expires_at = row["agent"], row["created_at"], row["expires_at"]
    return UnreadableOverride(
        agent=agent if isinstance(agent, str) and AGENT_NAME.fullmatch(agent) else None,
        precision="fp32",
        reason=f"override {row['id']} cannot be read; correct or clear it ({row['reason']})",
        actor=str(row["actor"]),
        created_at=created_at if isinstance(created_at, float) else 0.0,
        expires_at=expires_at if isinstance(expires_at, float) else None,
    )


def _scope(agent: str | None) -> ColumnElement[bool]:
    return overrides.c.agent.is_(None) if agent is None else overrides.c.agent == agent


class GuardDecisions:
    """The guard's decisions: entries are added and never changed; an agent's last is in force.

    Safe to use from several processes at once.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._as_decisions = RowReader(
            guard_decisions, Decision, "the agent's earlier decision stays in force"
        )

    def add(self, decision: Decision) -> None:
        """Append *decision*; an operator's is audited."""
        with self._engine.begin() as connection:
            connection.execute(insert(guard_decisions).values(asdict(decision)))
            if decision.actor != GUARD:
                change = Change(decision.actor, "guard clear", decision.agent, decision.reason)
                write_audit(connection, self._clock(), change)

    def since(self, entry: int) -> tuple[int, list[Decision]]:
        """The number of the last entry, and the decisions after the one numbered *entry*."""
        query = select(guard_decisions).where(guard_decisions.c.id > entry)
        with read_connection(self._engine) as connection:
            rows = connection.execute(query.order_by(guard_decisions.c.id)).mappings().all()
        return (rows[-1]["id"] if rows else entry), self._as_decisions(rows)

    def latest(self) -> dict[str, Decision]:
        """Agent to the last decision on it."""
        return {decision.agent: decision for decision in self.since(0)[1]}

    def history(self, agent: str, limit: int = 20) -> list[Decision]:
        """Decisions on *agent*, newest first."""
        query = select(guard_decisions).where(guard_decisions.c.agent == agent)
        newest = query.order_by(guard_decisions.c.id.desc()).limit(limit)
        with read_connection(self._engine) as connection:
            return self._as_decisions(connection.execute(newest).mappings())
