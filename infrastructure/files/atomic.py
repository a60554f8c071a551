"""Replaces files atomically: a reader sees the old content or the new, even after a power failure.

The content goes to a temporary file in the same folder, is flushed to the disk, and then renamed
over the old file (``rename(2)`` is atomic within a file system); the folder is flushed last.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

Ignore = Callable[[str, list[str]], Iterable[str]]
ABANDONED_SECONDS = 60.0  # the age at which a temporary file has no writer any more
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}")


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces *path* when the block ends without an error.

    The temporary file is named ``.<name>.<8 hexadecimal digits>`` and is removed after an error.

    Raises:
        OSError: Writing failed; *path* is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    flush_folder(path.parent)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace *path* by *content*; text is encoded as UTF-8.

    Raises:
        OSError: Writing failed; *path* is unchanged.
    """
    with atomic_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def copy_folder(source: Path, target: Path, ignore: Ignore | None = None) -> None:
    """Copy *source* to *target*, which appears complete or not at all; the first of several wins.

    A *source* that does not exist counts as empty. Links are followed. *ignore* gets each folder
    and the names in it, and returns the names to leave out.

    Raises:
        OSError: Copying failed; there is no *target*.
    """
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    temporary.mkdir(parents=True)
    try:
        if source.is_dir():
            shutil.copytree(
                source, temporary, ignore=ignore, copy_function=_copy_file, dirs_exist_ok=True
            )
        flush_folder(temporary)
        try:
            temporary.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    flush_folder(target.parent)


def _copy_file(source: str, target: str) -> None:
    with Path(source).open("rb") as read, Path(target).open("wb") as written:
        shutil.copyfileobj(read, written)
        written.flush()
        os.fsync(written.fileno())


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file to read; a pipe, which would wait for a writer, is refused.

    Raises:
        OSError: *path* cannot be opened, or is something else.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_limited(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most *limit* bytes.

    Another writer in the folder can neither make the reader wait nor fill its memory.

    Raises:
        OSError: *path* cannot be opened, is not a regular file, or is larger.
    """
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"is larger than {limit} bytes", str(path))
    return content


def flush_folder(folder: Path) -> None:
    """Wait until the names of the files in *folder* are on the disk.

    Raises:
        OSError: The disk does not confirm the write.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_abandoned(folder: Path, *, older_seconds: float = ABANDONED_SECONDS) -> None:
    """Delete temporary files that writers which were killed have left directly in *folder*.

    A file younger than *older_seconds* stays: its writer may still be at work. With 0, nothing
    else may be writing in the folder.

    Raises:
        OSError: The folder cannot be listed, or a file not be deleted.
    """
    for path in folder.iterdir():
        if _TEMPORARY.fullmatch(path.name):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime >= older_seconds:
                path.unlink(missing_ok=True)
