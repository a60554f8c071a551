"""Reads what is new in a server of records, each record once."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from infrastructure.agent_contract.transition import Transition, TransitionSpec
from infrastructure.files import JsonFileError, read_model, write_model
from infrastructure.trajectories.record_source.databases.entries import Entries, SourceServerError
from infrastructure.trajectories.record_source.databases.mongodb_collection import (
    MongoDBCollection,
)
from infrastructure.trajectories.record_source.databases.redis_stream import RedisStream
from infrastructure.trajectories.record_source.definition import AgentDefinition
from infrastructure.trajectories.record_source.formats import Decode, DecodedRecord, line_decoder
from infrastructure.trajectories.record_source.new_records import NewRecords
from infrastructure.trajectories.record_source.report import SourceReport

__all__ = ["CURSOR_FILE", "DatabaseSource", "SourceServerError"]

CURSOR_FILE = "source-cursor.json"  # in the agent's folder
_MOST_BYTES = 1 << 16


class _Cursor(BaseModel):
    """How far a server was read; losing it costs time only.

    Attributes:
        source: Hash of the server and the name of the records.
        cursor, read: See `Entries`.
    """

    model_config = ConfigDict(frozen=True)
    source: str
    cursor: str = ""
    read: int = 0


@dataclass(kw_only=True, slots=True)
class DatabaseSource:
    """The records of one agent in Redis or MongoDB; see `NewRecords` for which are new.

    Args:
        entries: The server.
        agent_folder: The agent's folder.
        spec: Fields that the agent's transitions should have.
        decode: Decoder of one record.
        agents: Names that mark a record as the agent's own; see `SourceTable`.
        clock: Monotonic seconds.
    """

    entries: Entries
    agent_folder: Path
    spec: TransitionSpec
    decode: Decode
    agents: tuple[str, ...] = ()
    clock: Callable[[], float] = time.monotonic
    _new: NewRecords = field(init=False)
    _reached: _Cursor | None = None

    def __post_init__(self) -> None:
        self._new = NewRecords(agent_folder=self.agent_folder, spec=self.spec, agents=self.agents)

    @classmethod
    def of_definition(
        cls, definition: AgentDefinition, name: str, home: Path, agent_folder: Path
    ) -> DatabaseSource:
        """Return the source that the definition of the agent *name* describes.

        Raises:
            MisconfiguredError: The driver is not installed, or the password cannot be read.
        """
        table = definition.source
        password = table.password_file and home / table.password_file.expanduser()
        own_format = table.format in ("transitions", "records")
        decode = line_decoder(table.format, table)
        return cls(
            entries=(
                RedisStream(table.url, table.stream, password)
                if table.kind == "redis"
                else MongoDBCollection(table.url, table.database, table.collection, password)
            ),
            agent_folder=agent_folder,
            spec=definition.transition_spec(),
            decode=lambda content: _with_identity(decode(content), content),
            agents=table.agents or ((name,) if own_format else ()),
        )

    @property
    def report(self) -> SourceReport:
        """What the last reading found."""
        return self._new.report

    @property
    def place(self) -> str:
        """Where the records are looked for."""
        return self.entries.place

    def new_transitions(self, seconds: float) -> Iterator[Transition]:
        """Yield the transitions of new records for at most *seconds*, in the server's order.

        The caller must have recorded a transition in the replay buffer when it asks for the next.

        Raises:
            SourceServerError: The server does not answer.
        """
        deadline = self.clock() + seconds
        self._new.begin()
        before = self._read_cursor()
        lost, read = self.entries.lost_since(before.cursor, before.read)
        if lost:
            self.report.unreadable[f"{lost} records"] = (
                f"{self.place} dropped them before they were read: run more often, or keep more"
            )
        for entry in self.entries.after(before.cursor):
            place = f"{self.place}, {entry.cursor}"
            yield from self._new.decode_line(entry.content, place, self.decode)
            read += 1
            self._reached = _Cursor(source=before.source, cursor=entry.cursor, read=read)
            if self.clock() >= deadline:
                return

    def keep_positions(self) -> None:
        """Remember how far the server was read; call this once the transitions are on the disk.

        Raises:
            OSError: The cursor cannot be written.
        """
        if self._new.end() and self._reached is not None:
            write_model(self.agent_folder / CURSOR_FILE, self._reached)

    def _read_cursor(self) -> _Cursor:
        source = hashlib.blake2b(self.place.encode(), digest_size=16).hexdigest()
        with suppress(FileNotFoundError, JsonFileError):
            cursor = read_model(self.agent_folder / CURSOR_FILE, _Cursor, limit=_MOST_BYTES)
            if cursor.source == source:
                return cursor
        return _Cursor(source=source)


def _with_identity(record: DecodedRecord, content: bytes) -> DecodedRecord:
    """The record with the id that Genesis gave it, so that it counts once wherever it is kept."""
    if record.id:
        return record
    with suppress(ValueError):
        body = json.loads(content)
        if isinstance(body, dict) and isinstance(body.get("trajectory_id"), str):
            return replace(record, id=f"{record.agent} {body['trajectory_id']}")
    return record
