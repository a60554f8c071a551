"""How far each file of a watched folder has been read, so that a run reads only what is new."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import BaseModel, ConfigDict

from infrastructure.files import JsonFileError, read_model, write_model

_SEAM_BYTES = 4096
_MOST_BYTES = 1 << 28


class Position(BaseModel):
    """How far one file has been read.

    Attributes:
        device, inode: Identity of the file, which a rename keeps.
        offset: Bytes read; ends after a complete line.
        lines: Lines read.
        seam: Hash of the beginning and the end of the bytes read, which shows whether a file of
            the same identity still begins with them.
        modified_ns, size: State of the file when it was read; for files that are replaced whole.
    """

    model_config = ConfigDict(frozen=True)
    device: int
    inode: int
    offset: int = 0
    lines: int = 0
    seam: str = ""
    modified_ns: int = 0
    size: int = 0


class _Content(BaseModel):
    model_config = ConfigDict(frozen=True)
    format: Literal[1]
    source: str
    positions: list[Position]


@dataclass(frozen=True, slots=True)
class PositionsFile:
    """The positions of one source, in the agent's folder.

    Losing them costs time only: files are read again, and records that are known are left out.

    Attributes:
        source: Hash of the source's description; positions of another one do not count.
    """

    path: Path
    source: str

    def read(self) -> dict[tuple[int, int], Position]:
        """Positions by device and inode; none if the file is missing, damaged or of another source.

        Raises:
            OSError: The file exists and cannot be read.
        """
        try:
            content = read_model(self.path, _Content, limit=_MOST_BYTES)
        except (FileNotFoundError, JsonFileError):
            return {}
        if content.source != self.source:
            return {}
        return {(position.device, position.inode): position for position in content.positions}

    def write(self, positions: Sequence[Position]) -> None:
        """Replace the file.

        Raises:
            OSError: It cannot be written.
        """
        content = _Content(format=1, source=self.source, positions=list(positions))
        write_model(self.path, content)


def seam_of(file: BinaryIO, offset: int) -> str:
    """Hash of the first and last bytes before *offset*; moves the position in *file*."""
    file.seek(0)
    head = file.read(min(offset, _SEAM_BYTES))
    start = max(0, offset - _SEAM_BYTES)
    file.seek(start)
    tail = file.read(offset - start)
    return hashlib.blake2b(head + tail, digest_size=16).hexdigest()


def resume_at(file: BinaryIO, known: Position | None, status: os.stat_result) -> Position:
    """Where to go on in *file*: at *known*, or at the beginning if its content was replaced."""
    start = Position(device=status.st_dev, inode=status.st_ino)
    if known is None or known.offset > status.st_size:
        return start
    return known if seam_of(file, known.offset) == known.seam else start
