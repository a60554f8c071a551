"""Results as lines of JSON: what is measured once is not measured again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

Record: TypeAlias = Mapping[str, Any]
Key: TypeAlias = tuple[str, str, int, bool]
"""Side, data set, seed, whether quick."""


def key_of(record: Record) -> Key:
    """What a record measured."""
    return record["side"], record["set"], record["seed"], record["quick"]


class Results:
    """The records of one *folder*; a later record replaces an earlier one of the same key."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "results.jsonl"
        self._records = {key_of(record): record for record in self._read()}

    def __contains__(self, key: Key) -> bool:
        return key in self._records

    def __getitem__(self, key: Key) -> Record:
        return self._records[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._records)

    def keep(self, record: Record) -> None:
        """Append *record*."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        self._records[key_of(record)] = record

    def _read(self) -> Iterator[Record]:
        if not self._path.exists():
            return
        with self._path.open() as file:
            for line in file:
                if line.endswith("\n"):  # the last line of a measurement that was killed may not
                    yield json.loads(line)
