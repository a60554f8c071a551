"""The pauses in force. Ended ones are removed; the audit trail keeps both steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict

from sqlalchemy import Connection, Engine, RowMapping, delete, insert, select

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.pause import Pause, PausesInForce, pauses_of
from genesis_fp16.store.database import read_connection
from genesis_fp16.store.decisions import Change, write_audit
from genesis_fp16.store.rows import RowReader
from genesis_fp16.store.schema import pauses
from infrastructure.agent_contract.agent import AGENT_NAME


class AgentPausedError(GenesisError, RuntimeError):
    """A run was asked for of an agent that is paused; nothing was queued."""

    exit_code = os.EX_TEMPFAIL

    def __init__(self, agent: str, pause: Pause) -> None:
        scope, target = ("it is", agent) if pause.agent else ("all agents are", "--all")
        super().__init__(
            f"no run of {agent} starts: {scope} paused by {pause.actor}: {pause.reason}; to end "
            f"that, genesis-fp16 agents resume {target} --reason WHY"
        )


class Pauses:
    """Pauses of single agents, and of all agents; the two are independent of each other.

    A pause that cannot be read stays in force, for all agents if its agent cannot be read either.
    Safe to use from several processes at once.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._engine, self._clock = engine, clock
        self._as_pauses = RowReader(
            pauses, Pause, "its agents stay paused until it is corrected or they are resumed"
        )

    def begin(self, pause: Pause) -> None:
        """Put *pause* in force, in place of an earlier one of the same scope; audited."""
        change = Change(
            pause.actor,
            "pause",
            pause.agent or "all",
            pause.reason,
            {"stops_runs": pause.stops_runs},
        )
        with self._engine.begin() as connection:
            self._remove(connection, pause.agent)
            connection.execute(insert(pauses).values(asdict(pause)))
            write_audit(connection, self._clock(), change)

    def end(self, agent: str | None, *, actor: str, reason: str) -> bool:
        """End the pause of *agent* (None: the one of all agents); audited.

        Returns:
            False if none was in force.
        """
        with self._engine.begin() as connection:
            ended = self._remove(connection, agent)
            if ended:
                change = Change(actor, "resume", agent or "all", reason)
                write_audit(connection, self._clock(), change)
        return ended

    def in_force(self) -> PausesInForce:
        """The newest pause of each scope."""
        with read_connection(self._engine) as connection:
            return {pause.agent: pause for _, pause in self._with_ids(connection)}

    def check(self, agent: str) -> None:
        """Check that runs of *agent* may start.

        Raises:
            AgentPausedError: It is paused; the message says by whom and why.
        """
        for pause in pauses_of(self.in_force(), agent):
            raise AgentPausedError(agent, pause)

    def _remove(self, connection: Connection, agent: str | None) -> bool:
        ids = [row for row, pause in self._with_ids(connection) if pause.agent == agent]
        connection.execute(delete(pauses).where(pauses.c.id.in_(ids)))
        return bool(ids)

    def _with_ids(self, connection: Connection) -> list[tuple[int, Pause]]:
        """Pauses, oldest first, with the ids of their rows."""
        rows = connection.execute(select(pauses).order_by(pauses.c.id)).mappings()
        return [(row["id"], self._as_pauses.one(row) or _instead(row)) for row in rows]


def _instead(row: RowMapping) -> Pause:
    """A pause instead of one that cannot be read, with its readable fields."""
    agent, created_at = row["agent"], row["created_at"]
    return Pause(
        agent=agent if isinstance(agent, str) and AGENT_NAME.fullmatch(agent) else None,
        reason=f"pause {row['id']} cannot be read; correct it or resume ({row['reason']})",
        actor=str(row["actor"]),
        created_at=created_at if isinstance(created_at, float) else 0.0,
    )
