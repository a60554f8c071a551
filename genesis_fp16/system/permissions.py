"""Keeps files with secrets closed to other users, with any umask that the process was started with.

The mode of one folder decides about all below it: its group may read what is created there only if
it may enter the folder, and other users may not.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

OTHERS, GROUP_AND_OTHERS = 0o007, 0o077


@contextmanager
def private_umask(folder: Path) -> Iterator[None]:
    """Create files in the block for nobody but their owner, and the group of *folder* if it may.

    If *folder* does not exist yet, it is created for its owner alone. The group of one that
    `close_to_others` would close may not.
    """
    before = os.umask(_umask_for(folder))
    try:
        yield
    finally:
        os.umask(before)


def close_to_others(folder: Path) -> None:
    """Close an existing *folder* and its direct entries to other users; logged.

    A folder that other users may enter is closed to its group, too, since nobody chose that group.
    One that only its group may enter stays shared with it. What belongs to another user stays as
    it is.
    """
    with suppress(OSError):  # missing, or not readable: its user reports that
        _close(folder, GROUP_AND_OTHERS)
        bits = OTHERS if _mode(folder) & stat.S_IRWXG else GROUP_AND_OTHERS
        for entry in folder.iterdir():
            _close(entry, bits)


def write_private(path: Path, text: str) -> None:
    """Write *text* to a file that only its owner may read, in any folder.

    Raises:
        OSError: It could not be written, for example to a full disk; the file is gone.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, 0o600)  # of a file that was there before
            file.write(text)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def open_to_others(folder: Path) -> Iterator[Path]:
    """The *folder*, or direct entries of it, that other users may read or change.

    A folder that others may enter but that belongs to another user, for example the root of a
    mounted volume, is only reported if it contains something that they may use.
    """
    if not _mode(folder) & OTHERS:
        return
    entries = [path for path in folder.iterdir() if _mode(path) & OTHERS and not path.is_symlink()]
    if entries or folder.stat().st_uid == os.geteuid() or _mode(folder) & stat.S_IWOTH:
        yield folder
    yield from sorted(entries)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def _umask_for(folder: Path) -> int:
    try:
        status = folder.stat()
    except OSError:
        return GROUP_AND_OTHERS
    if status.st_mode & OTHERS and status.st_uid == os.geteuid():
        return GROUP_AND_OTHERS
    return OTHERS | (stat.S_IRWXG & ~status.st_mode)


def _close(path: Path, bits: int) -> None:
    """Take *bits* of its mode from *path*, if other users may use it and it is ours."""
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.geteuid() or not mode & OTHERS:
        return
    with suppress(OSError):
        path.chmod(mode & ~bits)
        import structlog  # it imports rich, which most commands do without

        log = structlog.get_logger()
        log.warning("made_private", path=str(path), before=f"{mode:04o}", now=f"{mode & ~bits:04o}")
