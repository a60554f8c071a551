"""Reads what is new in a folder to which other programs write records, each record once."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import lzma
import os
import stat
import time
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from infrastructure.agent_contract.agent import MisconfiguredError
from infrastructure.agent_contract.transition import FieldValue, Transition, TransitionSpec
from infrastructure.trajectories.genesis_records import read_trajectory_pool
from infrastructure.trajectories.record_source.definition import SERVER_KEYS, AgentDefinition
from infrastructure.trajectories.record_source.formats import (
    Decode,
    DecodedRecord,
    line_decoder,
)
from infrastructure.trajectories.record_source.lines import (
    DECOMPRESS,
    LINE_TOO_LONG,
    MAX_DOCUMENT_BYTES,
    MAX_LINE_BYTES,
    OTHER_COMPRESSED,
    OTHER_LINE_ENDS,
    begins_document,
    document_records,
    is_object,
)
from infrastructure.trajectories.record_source.new_records import NewRecords
from infrastructure.trajectories.record_source.positions import (
    Position,
    PositionsFile,
    resume_at,
    seam_of,
)
from infrastructure.trajectories.record_source.report import SourceReport

POSITIONS_FILE = "source-positions.json"  # in the agent's folder
_BLANK = b" \t\r\n\0"  # a truncated file may begin with zero bytes
_HEAD_BYTES = 4096
_PASSES = 3  # over the folder, while files are renamed under us


class SourceFolderError(MisconfiguredError):
    """The folder of a source cannot be read; the message names it and the remedy."""


@dataclass(kw_only=True, slots=True)
class RecordSource:
    """The records of one agent in a folder that other programs write to.

    The replay buffer decides which records are known: a record counts as known only if a transition
    in the buffer was made from it. How far each file was read is merely remembered to save time.
    So a crash at any moment loses no record and doubles none.

    Args:
        name: Name of the agent.
        folder: Folder of the files.
        agent_folder: The agent's folder, with its replay buffer in ``replay``.
        spec: Fields that the agent's transitions should have.
        decode: Decoder of one line; None if each file is a whole trajectory pool.
        pattern: Names of the files; see `SourceTable`.
        agents: Names that mark a record as the agent's own, with ``*`` and ``?``, if it names an
            agent; empty for any.
        format: Description of how records are read. After a change, every file is read again.
        folder_setting: Setting that names the folder, for messages.
        clock: Monotonic seconds.
    """

    name: str
    folder: Path
    agent_folder: Path
    spec: TransitionSpec
    decode: Decode | None
    pattern: str = "*.jsonl"
    agents: tuple[str, ...] = ()
    format: str
    folder_setting: str
    clock: Callable[[], float] = time.monotonic
    _read: dict[tuple[int, int], Position] = field(default_factory=dict)
    _new: NewRecords = field(init=False)

    def __post_init__(self) -> None:
        self._new = NewRecords(agent_folder=self.agent_folder, spec=self.spec, agents=self.agents)

    @property
    def report(self) -> SourceReport:
        """What the last reading found."""
        return self._new.report

    @property
    def place(self) -> str:
        """Where the records are looked for."""
        return f"{self.folder} ({self.pattern})"

    @classmethod
    def of_definition(
        cls, definition: AgentDefinition, name: str, folder: Path, agent_folder: Path
    ) -> RecordSource:
        """Return the source that the definition of the agent *name* describes."""
        table = definition.source
        own_format = table.format in ("transitions", "records")
        whole_file = table.format == "trajectory-pool"
        return cls(
            name=name,
            folder=folder,
            agent_folder=agent_folder,
            spec=definition.transition_spec(),
            decode=None if whole_file else line_decoder(table.format, table),
            pattern=table.file_pattern,
            agents=table.agents or ((name,) if own_format else ()),
            format=table.model_dump_json(exclude=set(SERVER_KEYS)),
            folder_setting="source.path in the agent's definition",
        )

    def new_transitions(self, seconds: float) -> Iterator[Transition]:
        """Yield the transitions of new records for at most *seconds*, oldest file first.

        The caller must have recorded a transition in the replay buffer when it asks for the next.

        Raises:
            SourceFolderError: The folder is missing or cannot be listed.
        """
        deadline = self.clock() + seconds
        self._new.begin()
        before = self._positions_file().read()
        for _ in range(_PASSES):
            vanished = False
            for path in self._files():
                try:
                    with path.open("rb") as file:
                        yield from self._read_file(path, file, before, deadline)
                except FileNotFoundError:  # renamed since the folder was listed
                    vanished = True
                except OSError as error:
                    self.report.unreadable[path.name] = error.strerror or str(error)
                except (EOFError, lzma.LZMAError, zlib.error) as error:  # or it is being written
                    cause = f"it is damaged, or not complete yet ({error})"
                    self.report.unreadable[path.name] = cause
                if self.clock() >= deadline:
                    return
            if not vanished:
                return

    def keep_positions(self) -> None:
        """Remember how far the files were read; call this once the transitions are on the disk.

        Nothing is remembered if the transitions were recorded elsewhere than in the agent's replay
        buffer, as a measurement does: the next run reads those records again.

        Raises:
            OSError: The file of positions cannot be written.
        """
        if not self._new.end():
            return
        try:
            files = self._files()
        except SourceFolderError:  # the next run says so, and finds its records again
            return
        earlier = self._positions_file().read()
        present = {_identity(status) for path in files if (status := _status(path))}
        kept = {key: position for key, position in (earlier | self._read).items() if key in present}
        self._positions_file().write(list(kept.values()))

    def _positions_file(self) -> PositionsFile:
        described = f"{self.name} {self.folder} {self.format}"
        source = hashlib.blake2b(described.encode(), digest_size=16).hexdigest()
        return PositionsFile(self.agent_folder / POSITIONS_FILE, source)

    def _files(self) -> list[Path]:
        """Files of the folder, also rotated ones, in the order of their last change."""
        try:
            names = os.listdir(self.folder)  # noqa: PTH208 -- of a Path, it fails later
        except OSError as error:
            raise SourceFolderError(
                f"the folder of {self.name}'s records, {self.folder}, cannot be read: "
                f"{error.strerror}; restore it, or correct {self.folder_setting}. What was "
                "recorded before is kept"
            ) from error
        files = []
        for name in names:
            path = self.folder / name
            rotated = fnmatch.fnmatchcase(name, f"{self.pattern}[.-][0-9]*")
            if name.startswith(".") or not (rotated or fnmatch.fnmatchcase(name, self.pattern)):
                continue
            if name.endswith(OTHER_COMPRESSED):
                known = ", ".join(DECOMPRESS)
                cause = f"of the compressed files only {known} are read; decompress it"
                self.report.unreadable[name] = cause
                continue
            if (status := _status(path)) is not None and stat.S_ISREG(status.st_mode):
                files.append((status.st_mtime_ns, name, path))
        return [path for *_, path in sorted(files)]

    def _read_file(
        self,
        path: Path,
        file: BinaryIO,
        before: dict[tuple[int, int], Position],
        deadline: float,
    ) -> Iterator[Transition]:
        status = os.fstat(file.fileno())
        key = _identity(status)
        if key in self._read:  # in an earlier pass
            return
        self.report.files += 1
        if self.decode is None:
            yield from self._read_whole(path, status, before.get(key))
            return
        if path.suffix in DECOMPRESS:
            for number, line in self._decompressed(path, file, before.get(key), deadline):
                yield from self._decode(line, path, number)
            return
        if begins_document(file.read(_HEAD_BYTES)):
            yield from self._read_document(path, file, before.get(key), deadline)
            return
        position = resume_at(file, before.get(key), status)
        if position.offset == status.st_size:
            self._read[key] = position
            return
        file.seek(position.offset)
        try:
            for offset, lines, line in self._lines(path, file, position):
                yield from self._decode(line, path, lines)
                if offset >= 0:
                    position = position.model_copy(update={"offset": offset, "lines": lines})
                if self.clock() >= deadline:
                    break
        finally:
            seam = seam_of(file, position.offset)
            self._read[key] = position.model_copy(update={"seam": seam})

    def _read_document(
        self, path: Path, file: BinaryIO, before: Position | None, deadline: float
    ) -> Iterator[Transition]:
        """Read a file of pretty-printed JSON whole, if it has changed."""
        status = os.fstat(file.fileno())
        now = _whole_position(status)
        if before != now:
            file.seek(0)
            try:
                if status.st_size > MAX_DOCUMENT_BYTES:
                    raise ValueError("it is too large: write one record a line")
                records = document_records(file.read())
            except ValueError as error:
                cause = f"it is not JSON, or not complete yet ({error})"
                self.report.unreadable[path.name] = cause
                return
            for number, record in enumerate(records, start=1):
                place = f"{path.name} record {number}"
                if self.decode is not None:
                    yield from self._new.decode_line(record, place, self.decode)
                if self.clock() >= deadline:
                    return
        self._read[_identity(status)] = now

    def _decompressed(
        self, path: Path, file: BinaryIO, before: Position | None, deadline: float
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the number of each line and the line of a compressed file, if it has changed.

        Such a file no longer grows, so it is read from its beginning.
        """
        status = os.fstat(file.fileno())
        now = _whole_position(status)
        if before != now:
            with DECOMPRESS[path.suffix](file) as lines:
                for _, number, line in self._lines(path, lines, now):
                    yield number, line
                    if self.clock() >= deadline:
                        return
        if path.name not in self.report.unreadable:  # else it is told in the next pass, too
            self._read[_identity(status)] = now

    def _lines(
        self, path: Path, file: BinaryIO, position: Position
    ) -> Iterator[tuple[int, int, bytes]]:
        """Yield the offset after each line, its number, and the line.

        A last line without its newline is yielded only if it is a whole JSON object, with the
        offset -1: it is looked at again next time.
        """
        offset, number = position.offset, position.lines
        while line := file.readline(MAX_LINE_BYTES + 1):
            length, too_long = len(line), False
            while not line.endswith(b"\n") and len(line) > MAX_LINE_BYTES:
                too_long = True
                line = file.readline(MAX_LINE_BYTES + 1)
                length += len(line)
            if not line.endswith(b"\n"):
                if not too_long and is_object(line):
                    yield -1, number + 1, line
                elif b"\r" in line[:-1]:  # the last byte may be half of a line end
                    self.report.unreadable[path.name] = OTHER_LINE_ENDS
                else:
                    self.report.incomplete += 1
                return
            offset, number = offset + length, number + 1
            if too_long:
                self.report.refuse(LINE_TOO_LONG, f"{path.name} line {number}")
                line = b""
            yield offset, number, line

    def _decode(self, line: bytes, path: Path, number: int) -> Iterator[Transition]:
        if self.decode is not None:
            text = line.removeprefix(BOM_UTF8).strip(_BLANK)
            yield from self._new.decode_line(text, f"{path.name} line {number}", self.decode)

    def _read_whole(
        self, path: Path, status: os.stat_result, before: Position | None
    ) -> Iterator[Transition]:
        """Read a file that its writer replaces whole, if it has changed."""
        now = _whole_position(status)
        if before != now:
            problems = self.report.refused.total()
            for transition in read_trajectory_pool(path, self._refuse):
                parts = [dict(part) for part in _parts(transition)]
                text = json.dumps([transition.group, *parts]).encode()
                record = DecodedRecord(transitions=[transition])
                yield from self._new.take(record, text, path.name)
            if self.report.refused.total() > problems:  # perhaps it is being written: look again
                return
        self._read[_identity(status)] = now

    def _refuse(self, path: Path, line: int, reason: str) -> None:
        self.report.refuse(reason, f"{path.name} line {line}")


def _parts(transition: Transition) -> tuple[Mapping[str, FieldValue | None], ...]:
    return transition.observation, transition.action, transition.next_observation


def _whole_position(status: os.stat_result) -> Position:
    """Position in a file that was read to its end and does not grow."""
    return Position(
        device=status.st_dev,
        inode=status.st_ino,
        modified_ns=status.st_mtime_ns,
        size=status.st_size,
    )


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:  # a link to nowhere, or renamed since
        return None
