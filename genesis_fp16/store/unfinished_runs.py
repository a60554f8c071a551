"""Unfinished runs: the daemon's loop reads them in every round, cheaply even if 1,000 wait."""

from __future__ import annotations

from itertools import islice
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine, Select, select

from genesis_fp16.domain.run import TERMINAL, Run, RunState
from genesis_fp16.store import schema
from genesis_fp16.store.database import read_connection
from genesis_fp16.store.rows import RowReader

UNFINISHED = [state.value for state in RunState if state not in TERMINAL]
READ_AT_ONCE = 500  # rows that one query names

_Columns = TypeVar("_Columns", bound=tuple[object, ...])
_Row: TypeAlias = tuple[object, ...]


def in_order(query: Select[_Columns]) -> Select[_Columns]:
    """Restrict *query*, of the table of runs, to queued and active ones, the longest due first."""
    columns = schema.runs.c
    return query.where(columns.state.in_(UNFINISHED)).order_by(
        columns.due_at, columns.created_at, columns.id
    )


class UnfinishedRuns:
    """Queued and active runs. Only a run whose state has changed is read in full again.

    So a run that is known stays known while its row becomes unreadable, until its state changes.
    """

    def __init__(self, engine: Engine, as_runs: RowReader[Run]) -> None:
        self._engine, self._as_runs = engine, as_runs
        self._known: dict[str, tuple[_Row, Run]] = {}
        columns = schema.runs.c
        self._changing: Select[Any] = in_order(
            select(
                columns.id,
                columns.state,
                columns.cancel_requested,
                columns.available_at,
                columns.position,
            )
        )

    def read(self) -> list[Run]:
        """The runs, the longest due first; the results so far of an active run may be older."""
        rows: dict[str, _Row]
        before = self._known
        with read_connection(self._engine) as connection:
            rows = {row.id: tuple(row) for row in connection.execute(self._changing)}
            changed = {
                key for key, row in rows.items() if key not in before or before[key][0] != row
            }
            read = self._read_in_full(connection, changed)
        self._known = {}
        for key, row in rows.items():
            if key not in changed:
                self._known[key] = before[key]
            elif key in read:  # else it cannot be read, and is tried again
                self._known[key] = row, read[key]
        return [run for _, run in self._known.values()]

    def _read_in_full(self, connection: Connection, ids: set[str]) -> dict[str, Run]:
        runs: dict[str, Run] = {}
        left = iter(ids)
        while some := list(islice(left, READ_AT_ONCE)):
            query = select(schema.runs).where(schema.runs.c.id.in_(some))
            runs |= {run.id: run for run in self._as_runs(connection.execute(query).mappings())}
        return runs
