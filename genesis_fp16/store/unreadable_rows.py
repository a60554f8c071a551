"""How many rows nobody can read, since somebody else wrote them."""

from __future__ import annotations

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Engine, RowMapping, select

from genesis_fp16.domain.attempt import Attempt
from genesis_fp16.domain.guard import Decision
from genesis_fp16.domain.precision import Override
from genesis_fp16.domain.run import Run
from genesis_fp16.domain.schedule import DueTime
from genesis_fp16.store import schema
from genesis_fp16.store.audit_trail import Change
from genesis_fp16.store.database import reading

_KINDS = (
    (schema.runs, Run),
    (schema.attempts, Attempt),
    (schema.schedule_state, DueTime),
    (schema.overrides, Override),
    (schema.guard_decisions, Decision),
    (schema.audit, Change),
)


def unreadable_rows(engine: Engine) -> dict[str, int]:
    """Table to how many of its rows cannot be read; tables without such rows are left out.

    Args:
        engine: A migrated database.
    """
    counts = {}
    with reading(engine) as connection:
        for table, kind in _KINDS:
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
