"""What is known of runs and their attempts. Every method sees one state of the database."""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy import Engine, Select, func, select

from genesis_fp16.domain.attempt import Attempt
from genesis_fp16.domain.run import TERMINAL, Run, RunState
from genesis_fp16.domain.schedule import DueTime
from genesis_fp16.store import schema
from genesis_fp16.store.database import reading
from genesis_fp16.store.row_reader import RowReader, is_number

Row = TypeVar("Row", Run, Attempt, DueTime)
UNFINISHED = [state.value for state in RunState if state not in TERMINAL]


class RunHistory:
    """Reads runs and attempts, past and present; a row that cannot be read costs only itself.

    Args:
        engine: A migrated database, see `open_database`.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._as_runs = RowReader(schema.runs, Run, "the run is passed over, as if unknown")
        self._as_attempts = RowReader(
            schema.attempts, Attempt, "the attempt is passed over, as if unknown"
        )
        self._as_due_times = RowReader(
            schema.schedule_state, DueTime, "the agent counts as one that was never due"
        )

    def last_due(self, agent: str) -> float | None:
        """The last due time of *agent* that was dealt with; None if it never was due."""
        table = schema.schedule_state
        found = self._read(self._as_due_times, select(table).where(table.c.agent == agent))
        return found[0].last_due if found else None

    def run(self, run_id: str) -> Run | None:
        """The run of that id, if there is one."""
        found = self._read(self._as_runs, select(schema.runs).where(schema.runs.c.id == run_id))
        return found[0] if found else None

    def runs(self, agent: str | None = None, limit: int = 50) -> list[Run]:
        """The newest runs, newest first."""
        query = select(schema.runs).order_by(
            schema.runs.c.created_at.desc(), schema.runs.c.id.desc()
        )
        if agent is not None:
            query = query.where(schema.runs.c.agent == agent)
        return self._read(self._as_runs, query.limit(limit))

    def last_success(self, agent: str) -> float:
        """End of the agent's last successful run in Unix time; 0 if there is none."""
        query = select(func.max(schema.runs.c.finished_at)).where(
            schema.runs.c.agent == agent,
            schema.runs.c.state == RunState.SUCCEEDED.value,
            is_number(schema.runs.c.finished_at),
        )
        with reading(self._engine) as connection:
            return connection.scalar(query) or 0.0

    def unfinished(self, agent: str | None = None) -> list[Run]:
        """Queued and active runs, the longest due first."""
        query = (
            select(schema.runs)
            .where(schema.runs.c.state.in_(UNFINISHED))
            .order_by(schema.runs.c.due_at, schema.runs.c.created_at, schema.runs.c.id)
        )
        if agent is not None:
            query = query.where(schema.runs.c.agent == agent)
        return self._read(self._as_runs, query)

    def attempts(self, run_id: str) -> list[Attempt]:
        """Attempts of the run, oldest first."""
        query = select(schema.attempts).where(schema.attempts.c.run_id == run_id)
        return self._read(self._as_attempts, query.order_by(schema.attempts.c.number))

    def _read(self, reader: RowReader[Row], query: Select[Any]) -> list[Row]:
        with reading(self._engine) as connection:
            return reader(connection.execute(query).mappings())
