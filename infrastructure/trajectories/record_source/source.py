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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from infrastructure.agent_contract.agent import MisconfiguredError
from infrastructure.agent_contract.transition import FieldValue, Transition, TransitionSpec
from infrastructure.trajectories.genesis_records import read_trajectory_pool
from infrastructure.trajectories.record_source.definition import AgentDefinition
from infrastructure.trajectories.record_source.formats import (
    Decode,
    DecodedRecord,
    line_decoder,
)
from infrastructure.trajectories.record_source.lines import (
    DECOMPRESS,
    LINE_TOO_LONG,
    MAX_LINE_BYTES,
    OTHER_COMPRESSED,
    OTHER_LINE_ENDS,
    is_object,
    split_objects,
    whole_end,
)
from infrastructure.trajectories.record_source.positions import (
    Position,
    PositionsFile,
    resume_at,
    seam_of,
)
from infrastructure.trajectories.record_source.report import SourceReport
from infrastructure.trajectories.replay_buffer import ReplayBuffer
from infrastructure.trajectories.schema import transition_problem

RECORD_KEY = "source_record"
"""Name in `Transition.info` of the identity of the record that a transition was made from."""

POSITIONS_FILE = "source-positions.json"  # in the agent's folder
_BLANK = b" \t\r\n\0"  # a truncated file may begin with zero bytes
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
    report: SourceReport = field(default_factory=SourceReport)
    _known: set[str] | None = None
    _read: dict[tuple[int, int], Position] = field(default_factory=dict)
    _began_at_bytes: int = -1

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
            format=table.model_dump_json(),
            folder_setting="source.path in the agent's definition",
        )

    def new_transitions(self, seconds: float) -> Iterator[Transition]:
        """Yield the transitions of new records for at most *seconds*, oldest file first.

        The caller must have recorded a transition in the replay buffer when it asks for the next.

        Raises:
            SourceFolderError: The folder is missing or cannot be listed.
        """
        deadline = self.clock() + seconds
        self._began_at_bytes = _buffer_bytes(self.agent_folder)
        self.report = SourceReport()
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
        elsewhere = _buffer_bytes(self.agent_folder) <= self._began_at_bytes
        if self._began_at_bytes < 0 or (self.report.transitions and elsewhere):
            return
        try:
            files = self._files()
        except SourceFolderError:  # the next run says so, and finds its records again
            return
        earlier = self._positions_file().read()
        present = {_identity(status) for path in files if (status := _status(path))}
        kept = {key: position for key, position in (earlier | self._read).items() if key in present}
        self._positions_file().write(list(kept.values()))
        self._began_at_bytes = -1

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
                yield from self._decode_line(line, f"{path.name} line {number}", self.decode)
            return
        position = resume_at(file, before.get(key), status)
        if position.offset == status.st_size:
            self._read[key] = position
            return
        file.seek(position.offset)
        try:
            for offset, lines, line in self._lines(path, file, position):
                yield from self._decode_line(line, f"{path.name} line {lines}", self.decode)
                if offset >= 0:
                    position = position.model_copy(update={"offset": offset, "lines": lines})
                if self.clock() >= deadline:
                    break
        finally:
            seam = seam_of(file, position.offset)
            self._read[key] = position.model_copy(update={"seam": seam})

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

    def _decode_line(self, line: bytes, place: str, decode: Decode) -> Iterator[Transition]:
        for text in split_objects(line.removeprefix(BOM_UTF8).strip(_BLANK)):
            try:
                record = decode(text)
            except ValueError as error:
                self.report.refuse(_kind_of(error), place)
                whole = whole_end(text, decode)
                if whole is None:
                    continue
                record, rest = whole
                yield from self._take(record, rest, place)
            else:
                yield from self._take(record, text, place)

    def _take(self, record: DecodedRecord, text: bytes, place: str) -> Iterator[Transition]:
        """Yield the transitions of *record*, if they are this agent's and new."""
        if not self._is_own(record.agent):
            self.report.others[record.agent[:80]] += 1
            return
        content = b"id " + record.id.encode("utf-8", "replace") if record.id else b"line " + text
        identity = hashlib.blake2b(content, digest_size=8).hexdigest()
        known, is_new = self._known_records(), False
        for number, transition in enumerate(record.transitions):
            mark = f"{identity}/{number}" if number else identity
            if mark in known:
                continue
            known.add(mark)
            is_new = True
            self.report.transitions += 1
            if problem := transition_problem(self.spec, transition):
                reason = problem.partition(", got ")[0]
                self.report.misfits[reason] += 1
                self.report.first.setdefault(reason, place)
            yield replace(transition, info={**transition.info, RECORD_KEY: mark})
        self.report.records += is_new
        self.report.duplicates += not is_new and len(record.transitions) > 0

    def _is_own(self, agent: str) -> bool:
        """Whether a record that names *agent*, or none, may be this agent's."""
        if not agent or not self.agents or agent in self.agents:
            return True
        return any(fnmatch.fnmatchcase(agent, name) for name in self.agents)

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
                yield from self._take(record, text, path.name)
            if self.report.refused.total() > problems:  # perhaps it is being written: look again
                return
        self._read[_identity(status)] = now

    def _refuse(self, path: Path, line: int, reason: str) -> None:
        self.report.refuse(reason, f"{path.name} line {line}")

    def _known_records(self) -> set[str]:
        """Identities of the records in the replay buffer; the first call reads it."""
        if self._known is None:
            buffer = ReplayBuffer(self.agent_folder / "replay")
            self._known = {str(transition.info.get(RECORD_KEY, "")) for transition in buffer.read()}
        return self._known


def _kind_of(error: ValueError) -> str:
    """What is equal in the same error of several lines: no value, and no column."""
    return str(error).partition(", got ")[0].partition(" at column ")[0][:200]


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


def _buffer_bytes(agent_folder: Path) -> int:
    return sum(ReplayBuffer(agent_folder / "replay").snapshot().lengths.values())
