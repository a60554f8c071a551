"""A run's folder: which of its files hold weights, and how they or all files are removed."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from infrastructure.agent_contract.agent import AGENT_NAME
from infrastructure.agent_contract.run_context import AT_START, ROWS_FOLDER

WEIGHTS_REMOVED = "weights-removed.txt"  # in the run's folder; holds the reason
RUN_ID = re.compile(r"[0-9]{8}T[0-9]{6}-[0-9a-f]{8}")  # also the name of the run's folder
RUN_NUMBER = re.compile(rf"({AGENT_NAME.pattern})?#([0-9]{{1,9}})")  # among those of an agent
_WEIGHTS = re.compile(
    r"checkpoints(\.set-aside-\d+)?|best-epoch\.pt|\.best-epoch\.pt\..+|"
    rf"{re.escape(AT_START)}|{re.escape(ROWS_FOLDER)}"
)


def is_folder(path: Path) -> bool:
    """Whether *path* is a folder, not a link to one; raises OSError if access is denied."""
    with suppress(FileNotFoundError):
        return stat.S_ISDIR(path.lstat().st_mode)
    return False


def weights_of(run_folder: Path) -> list[Path]:
    """What only serves to resume the run: weights, encoded rows; no links; may raise OSError."""
    if (run_folder / WEIGHTS_REMOVED).exists():
        return []
    weights = [path for path in run_folder.iterdir() if _WEIGHTS.fullmatch(path.name)]
    return [path for path in weights if not path.is_symlink()]


def remove_weights(run_folder: int, reason: str) -> Iterator[int]:
    """Delete the weights in an opened folder step by step, as `delete`; then record the *reason*.

    Raises:
        OSError: As `delete`, or the weights were removed before.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    names = [name for name in os.listdir(run_folder) if _WEIGHTS.fullmatch(name)]
    for name in names:
        yield from delete(run_folder, name)
    record = os.open(WEIGHTS_REMOVED, flags, 0o666, dir_fd=run_folder)
    with os.fdopen(record, "w") as file:
        file.write(f"{reason}\n")


def weights_removal_reason(run_folder: Path) -> str:
    """The reason that `remove_weights` recorded; empty if it removed nothing."""
    record = run_folder / WEIGHTS_REMOVED
    with suppress(OSError, ValueError):
        return record.read_text().strip() if record.is_file() else ""
    return ""


def describe_removal(run_folder: Path, recorded: str | None) -> str:
    """The *recorded* removal of the folder, and whether files are left in it; empty if none."""
    if recorded and os.path.lexists(run_folder):
        return f"some is left in {run_folder}, see run_files_not_removed; the rest was {recorded}"
    return recorded or ""


@contextmanager
def opened(folder: str | Path, within: int | None = None) -> Iterator[int]:
    """Open *folder* of the folder that is opened as *within*; yields its descriptor.

    Raises:
        OSError: It is missing, or a link, which only a folder outside of others may be.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | (0 if within is None else os.O_NOFOLLOW)
    descriptor = os.open(folder, flags, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def delete(folder: int, name: str) -> Iterator[int]:
    """Delete *name* of the opened *folder* and everything in it but links, step by step.

    Every step looks at one entry or deletes one. It is relative to an opened folder and never
    follows a link, also if one takes the place of a folder meanwhile. Uses two descriptors at any
    depth.

    Yields:
        Bytes freed by each step.

    Raises:
        OSError: Something cannot be deleted, or was replaced or moved meanwhile.
    """
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        yield _delete_file(folder, name)
        return
    here = os.dup(folder)
    levels = [_Level("", _identity(here), [name], keeps_links=True)]
    try:
        while levels:
            level = levels[-1]
            if level.folders:
                name = level.folders.pop()
                here = _enter(here, name)
                inside = _Level(name, _identity(here), [], keeps_links=False)
                for file in _list(here, inside):
                    yield 0 if file is None else _delete_file(here, file)
                levels.append(inside)
                continue
            levels.pop()
            if not levels:
                break
            here = _enter(here, "..")
            if _identity(here) != levels[-1].identity:
                raise OSError(errno.EBUSY, "the folder was moved while it was deleted", level.name)
            if level.keeps_links:
                levels[-1].keeps_links = True
            else:
                os.rmdir(level.name, dir_fd=here)
                yield 0
    finally:
        os.close(here)


@dataclass(slots=True)
class _Level:
    name: str
    identity: tuple[int, int]
    folders: list[str]  # still to delete
    keeps_links: bool


def _enter(here: int, name: str) -> int:
    """Open the folder *name* of *here*, which is closed if that succeeds."""
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
    os.close(here)
    return folder


def _identity(folder: int) -> tuple[int, int]:
    status = os.fstat(folder)
    return status.st_dev, status.st_ino


def _list(folder: int, level: _Level) -> Iterator[str | None]:
    """Yield None for each entry of *folder*, then the name of each file.

    Folders and links are added to *level*. Deleting the files at once could hide entries from the
    listing.
    """
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                level.keeps_links = True
            elif entry.is_dir(follow_symlinks=False):
                level.folders.append(entry.name)
            else:
                files.append(entry.name)
            yield None
    yield from files


def _delete_file(folder: int, name: str) -> int:
    """Delete the file *name* of *folder* unless it is a link; return the bytes freed."""
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        return 0
    os.unlink(name, dir_fd=folder)
    return status.st_size
