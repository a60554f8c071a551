"""What is known of runs and their attempts. Every method sees one state of the database."""

from __future__ import annotations

from sqlalchemy import Engine, RowMapping, func, select

from genesis_fp16.runs import TERMINAL, RunState
from genesis_fp16.store import schema
from genesis_fp16.store.database import reading
from genesis_fp16.store.rows import Attempt, Run

UNFINISHED = [state.value for state in RunState if state not in TERMINAL]


class RunHistory:
    """Reads runs and attempts, past and present.

    Args:
        engine: A migrated database, see `open_database`.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run(self, run_id: str) -> Run | None:
        """The run of that id, if there is one."""
        with reading(self._engine) as connection:
            found = connection.execute(select(schema.runs).where(schema.runs.c.id == run_id))
            row = found.mappings().first()
        return _run(row) if row is not None else None

    def runs(self, agent: str | None = None, limit: int = 50) -> list[Run]:
        """The newest runs, newest first."""
        query = select(schema.runs).order_by(
            schema.runs.c.created_at.desc(), schema.runs.c.id.desc()
        )
        if agent is not None:
            query = query.where(schema.runs.c.agent == agent)
        with reading(self._engine) as connection:
            return [_run(row) for row in connection.execute(query.limit(limit)).mappings()]

    def last_success(self, agent: str) -> float:
        """End of the agent's last successful run in Unix time; 0 if there is none."""
        query = select(func.max(schema.runs.c.finished_at)).where(
            schema.runs.c.agent == agent, schema.runs.c.state == RunState.SUCCEEDED.value
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
        with reading(self._engine) as connection:
            return [_run(row) for row in connection.execute(query).mappings()]

    def attempts(self, run_id: str | None = None) -> list[Attempt]:
        """Attempts of the run, oldest first; without *run_id* those of all that are open."""
        query = select(schema.attempts).order_by(schema.attempts.c.number)
        if run_id is None:
            query = query.where(schema.attempts.c.finished_at.is_(None))
        else:
            query = query.where(schema.attempts.c.run_id == run_id)
        with reading(self._engine) as connection:
            return [Attempt(**row) for row in connection.execute(query).mappings()]


def _run(row: RowMapping) -> Run:
    return Run(**{**row, "state": RunState(row["state"])})
