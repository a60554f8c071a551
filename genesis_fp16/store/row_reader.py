"""From rows of a table to what the store gives out; somebody else may have written in it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Generic, TypeVar

import structlog
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Column, ColumnElement, RowMapping, Table

Kind = TypeVar("Kind")

log = structlog.get_logger()


def is_number(column: Column[float]) -> ColumnElement[bool]:
    """Where *column* holds a number: to SQLite text, which it takes too, is more than any."""
    return column < math.inf


class RowReader(Generic[Kind]):
    """Makes a *kind* of each row. One that cannot be read is left out, and logged once.

    Args:
        table: Where the rows come from.
        kind: A dataclass whose fields are columns of *table*.
        consequence: What it means that a row is left out.
    """

    def __init__(self, table: Table, kind: type[Kind], consequence: str) -> None:
        self._table, self._kind, self._consequence = table, TypeAdapter(kind), consequence
        self._key = [column.name for column in table.primary_key]
        self._logged: set[tuple[object, ...]] = set()

    def __call__(self, rows: Iterable[RowMapping]) -> list[Kind]:
        """Read *rows*, which hold every column of the table that *kind* has, and its key."""
        return [found for row in rows if (found := self.one(row)) is not None]

    def one(self, row: RowMapping) -> Kind | None:
        """Read *row*; None if it cannot be read."""
        try:
            return self._kind.validate_python(dict(row))
        except ValidationError as error:
            self._tell(row, error)
            return None

    def _tell(self, row: RowMapping, error: ValidationError) -> None:
        key = tuple(row[name] for name in self._key)
        if key in self._logged:
            return
        self._logged.add(key)
        wrong = [
            f"{'.'.join(map(str, each['loc']))} is {each['input']!r:.80}: {each['msg']}"
            for each in error.errors(include_url=False)
        ]
        log.warning(
            "row_unreadable",
            table=self._table.name,
            row=dict(zip(self._key, map(str, key), strict=True)),
            agent=row.get("agent"),
            error="; ".join(wrong),
            consequence=self._consequence,
            remedy="correct the row in the database, or delete it",
        )
