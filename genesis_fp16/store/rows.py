"""Reads rows of tables, which other programs may have written too, into dataclasses."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import structlog
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Column, ColumnElement, RowMapping, Table

Kind = TypeVar("Kind")

log = structlog.get_logger()

_adapters: dict[type[object], TypeAdapter[Any]] = {}  # built once for all stores of a process


def is_number(column: Column[float]) -> ColumnElement[bool]:
    """Condition: *column* holds a number. SQLite stores text there too, and sorts it last."""
    return column < math.inf


class RowReader(Generic[Kind]):
    """Makes a *kind* of each row. A row that cannot be read is left out, and logged once.

    The fields of *kind*, a dataclass, are columns of *table*. The log tells the *consequence* of
    leaving out a row.
    """

    def __init__(self, table: Table, kind: type[Kind], consequence: str) -> None:
        self._table, self._consequence = table, consequence
        if kind not in _adapters:
            _adapters[kind] = TypeAdapter(kind)
        self._kind: TypeAdapter[Kind] = _adapters[kind]
        self._key = [column.name for column in table.primary_key]
        self._logged: set[tuple[object, ...]] = set()

    def __call__(self, rows: Iterable[RowMapping]) -> list[Kind]:
        """Read *rows*, which hold the columns of *kind* and the key of the table."""
        return [record for row in rows if (record := self.one(row)) is not None]

    def one(self, row: RowMapping) -> Kind | None:
        """Read *row*; None if it cannot be read."""
        try:
            return self._kind.validate_python(dict(row))
        except ValidationError as error:
            self._log(row, error)
            return None

    def _log(self, row: RowMapping, error: ValidationError) -> None:
        key = tuple(row[name] for name in self._key)
        if key in self._logged:
            return
        self._logged.add(key)
        wrong = [
            f"{'.'.join(map(str, details['loc']))} is {details['input']!r:.80}: {details['msg']}"
            for details in error.errors(include_url=False)
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
