"""What the daemon reads and writes of an attempt on another machine; see `remote_attempt`."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from genesis_fp16.domain.remote_attempt import (
    CLAIM_FILE,
    COMMANDS_FILE,
    FENCE_FILE,
    HEARTBEAT_FILE,
    LONGEST_FILE,
    ORDER_FILE,
    RESULT_FILE,
    JobOrder,
    Result,
)
from infrastructure.files import JsonFileError, read_model, write_atomically, write_model

_Record = TypeVar("_Record", bound=BaseModel)


def write_fence(run_folder: Path, incarnation: str) -> None:
    """Give the run to the attempt *incarnation*; launchers of all others kill their workers.

    Raises:
        OSError: It cannot be written.
    """
    write_atomically(run_folder / FENCE_FILE, incarnation)


def revoke(attempt_folder: Path) -> None:
    """Take the run from its present attempt, if the run still has a folder.

    Raises:
        OSError: The fence cannot be written.
    """
    with suppress(FileNotFoundError):
        write_fence(attempt_folder.parents[1], "none")


def write_order(folder: Path, order: JobOrder) -> None:
    """Write the order into the attempt's *folder*.

    Raises:
        OSError: It cannot be written.
    """
    write_model(folder / ORDER_FILE, order, indent=2)


def read_order(folder: Path) -> JobOrder | None:
    """The order in the attempt's *folder*; None if nothing readable is there."""
    return _read(folder / ORDER_FILE, JobOrder)


def read_result(folder: Path, incarnation: str) -> Result | None:
    """The result of the attempt *incarnation*; None if it has none yet."""
    result = _read(folder / RESULT_FILE, Result)
    return result if result is not None and result.incarnation == incarnation else None


def is_claimed(folder: Path) -> bool:
    """Whether a launcher is known to have started the attempt; not while storage fails."""
    try:
        return (folder / CLAIM_FILE).exists()
    except OSError:
        return False


def last_heartbeat(folder: Path) -> float:
    """When the launcher last showed that it lives, by the clock of the storage; 0 if never."""
    try:
        return (folder / HEARTBEAT_FILE).stat().st_mtime
    except OSError:
        return 0.0


def append_commands(folder: Path, lines: bytes) -> None:
    """Append complete *lines* for the launcher to forward.

    Raises:
        OSError: They cannot be written now.
    """
    path = folder / COMMANDS_FILE
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o640)
    try:
        written = os.write(descriptor, lines)
        if written < len(lines):  # the disk is full: a half line would spoil the next
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
            raise OSError(f"{path} took {written} of {len(lines)} bytes")
        os.fsync(descriptor)  # NFS sends it to the server now
    finally:
        os.close(descriptor)


def _read(path: Path, kind: type[_Record]) -> _Record | None:
    try:
        return read_model(path, kind, limit=LONGEST_FILE)
    except (OSError, JsonFileError):
        return None
