"""Copies the files of a home while others write to them, until a copy is of one moment."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from genesis_fp16.store.daemon_status import LOCK_FILE, STATUS_FILE

PASSES = 50
# Of one machine and one process; `store-id` names the folder of a bucket that one home alone uses.
_LEFT_OUT = frozenset({LOCK_FILE, STATUS_FILE, "store-id"})
_GROWING = (".ndjson", ".jsonl", ".log")  # what is appended to a line at a time
_PRIVATE = 0o700

Seen = tuple[int, int, int]  # size, time of the last change, inode


class RestlessError(RuntimeError):
    """Files kept changing while they were copied."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CopiedFile:
    """Size in bytes and SHA-256 of a file of the copy."""

    size: int
    sha256: str


def copy_at_rest(
    home: Path, target: Path, database: Path, snapshot: Callable[[], None]
) -> dict[str, CopiedFile]:
    """Copy the files of *home* to *target* so that they fit the database as *snapshot* saves it.

    Each pass takes a snapshot and copies what has changed. In the last one nothing changes but
    files that grow by lines: so all others are of one moment, and those that grow hold what the
    database knows, and perhaps more, as after a crash.

    Args:
        home: The absolute home.
        target: An empty folder.
        database: File of the database, which is left out with its log.
        snapshot: Saves the database; called once a pass.

    Returns:
        Path below *target* to the copied file.

    Raises:
        RestlessError: In `PASSES` passes there was no such moment.
        OSError: A file cannot be read or written.
    """
    copied: dict[str, CopiedFile] = {}
    known: dict[str, Seen] = {}
    skipped = {database.with_name(database.name + end) for end in ("", "-wal", "-shm", "-journal")}
    for _ in range(PASSES):
        found = dict(_files(home, skipped))
        snapshot()
        for name in known.keys() - found.keys():
            (target / name).unlink(missing_ok=True)
            del copied[name], known[name]
        for name, seen in found.items():
            if known.get(name) != seen:
                with suppress(FileNotFoundError):  # removed meanwhile: the next pass sees it
                    copied[name] = _copy(home / name, target / name)
                    known[name] = seen
        if _has_only_grown(found, dict(_files(home, skipped))):
            for name in copied:  # not in each pass, which would take longer than files rest
                flush(target / name)
            return copied
    raise RestlessError(f"files of {home} changed in each of {PASSES} passes")


def flush(path: Path) -> None:
    """Have what was written to *path* on the disk before this returns.

    Raises:
        OSError: It cannot be opened or written.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest(path: Path) -> CopiedFile:
    """Size and SHA-256 of the file at *path*.

    Raises:
        OSError: It cannot be read, or is not a regular file.
    """
    _check_regular(path)
    size, total = 0, sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            size += len(block)
            total.update(block)
    return CopiedFile(size=size, sha256=total.hexdigest())


def read_regular(path: Path) -> bytes:
    """The bytes of the file at *path*.

    Raises:
        OSError: It cannot be read, or is not a regular file.
    """
    _check_regular(path)
    return path.read_bytes()


def links(home: Path) -> list[str]:
    """Links below *home*, which a copy leaves out."""
    return sorted(
        str(path.relative_to(home))
        for folder, folders, names in os.walk(home)
        for name in (*folders, *names)
        if not name.startswith(".") and (path := Path(folder) / name).is_symlink()
    )


def _check_regular(path: Path) -> None:
    """A pipe would wait for a writer."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(f"{path} is not a regular file")


def _has_only_grown(before: dict[str, Seen], now: dict[str, Seen]) -> bool:
    """Whether all files are as they were, but for lines that were appended."""
    for name in before.keys() | now.keys():
        earlier, later = before.get(name), now.get(name)
        if earlier == later:
            continue
        if later is None or not name.endswith(_GROWING):
            return False
        if earlier is not None and (later[0] < earlier[0] or later[2] != earlier[2]):
            return False
    return True


def _files(home: Path, skipped: set[Path]) -> Iterator[tuple[str, Seen]]:
    """Regular files below *home*; links are not followed."""
    for folder, folders, names in os.walk(home):
        here = Path(folder)
        folders.sort()
        for name in names:
            path = here / name
            top = here == home and (name in _LEFT_OUT or path in skipped)
            if top or name.startswith("."):  # hidden ones are temporary: see `atomic_file`
                continue
            with suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    seen = (status.st_size, status.st_mtime_ns, status.st_ino)
                    yield str(path.relative_to(home)), seen


def _copy(source: Path, target: Path) -> CopiedFile:
    target.parent.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
    size, total = 0, sha256()
    with source.open("rb") as read, target.open("wb") as written:
        while block := read.read(1 << 20):
            written.write(block)
            size += len(block)
            total.update(block)
    shutil.copystat(source, target)
    return CopiedFile(size=size, sha256=total.hexdigest())
