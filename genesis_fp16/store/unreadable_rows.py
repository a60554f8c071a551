"""Counts the rows of every table that cannot be read, for ``genesis-fp16 doctor``."""

from __future__ import annotations

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Engine, RowMapping, select

from genesis_fp16.domain.attempt import Attempt
from genesis_fp16.domain.guard import Decision
from genesis_fp16.domain.pause import Pause
from genesis_fp16.domain.precision import Override
from genesis_fp16.domain.run import Run
from genesis_fp16.domain.schedule import DueTime
from genesis_fp16.store import schema
from genesis_fp16.store.database import read_connection
from genesis_fp16.store.decisions import Change

_DATACLASSES = (
    (schema.runs, Run),
    (schema.attempts, Attempt),
    (schema.schedule_state, DueTime),
    (schema.overrides, Override),
    (schema.guard_decisions, Decision),
    (schema.pauses, Pause),
    (schema.audit, Change),
)


def count_unreadable_rows(engine: Engine) -> dict[str, int]:
    """Table to the number of its unreadable rows; tables without such rows are left out."""
    counts = {}
    with read_connection(engine) as connection:
        for table, kind in _DATACLASSES:
            adapter = TypeAdapter[object](kind)
            rows = connection.execute(select(table)).mappings()
            if count := sum(not _is_readable(adapter, row) for row in rows):
                counts[table.name] = count
    return counts


def _is_readable(adapter: TypeAdapter[object], row: RowMapping) -> bool:
    try:
        adapter.validate_python(dict(row))
    except ValidationError:
        return False
    return True
