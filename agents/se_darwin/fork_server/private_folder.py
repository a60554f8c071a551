"""Private folders for candidates: small file systems in memory, seen by one candidate at a time.

They exist in the fork server's mount namespace only, on top of ``/tmp``, and end with it. A
candidate may use its own one; Landlock denies it every other path. Without namespaces or Landlock
there are no folders.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from .confinement import make_read_only, mount_memory, user_after_drop

MAX_FOLDER_BYTES = 8 << 20
"""Size of a folder with all that it contains."""

MAX_FILE_BYTES = 4 << 20
MAX_FILES = 400
"""Number of files and folders in a folder: fewer than Python's recursion may be deep."""

MAX_DESCRIPTORS = 64

_BASE = Path("/tmp")  # noqa: S108 - in a mount namespace of its own
_COVERED = (b"/proc", b"/sys", b"/dev")


def make_folders(count: int) -> list[str]:
    """Make *count* folders after `enter_namespaces`, before `drop_user`.

    What the kernel shows of other processes and devices is covered, because candidates with folders
    may open files.

    Raises:
        OSError: The kernel refuses it.
    """
    uid, gid = user_after_drop()
    mount_memory(os.fsencode(_BASE), b"size=64k,nr_inodes=64,mode=755")
    folders = [_BASE / str(number) for number in range(count)]
    options = f"size={MAX_FOLDER_BYTES},nr_inodes={MAX_FILES},mode=700,uid={uid},gid={gid}"
    for folder in folders:
        folder.mkdir()
        mount_memory(os.fsencode(folder), options.encode())
    make_read_only(os.fsencode(_BASE))
    for path in _COVERED:
        mount_memory(path, b"size=4k,nr_inodes=1,mode=000")
    return [str(folder) for folder in folders]


def use_folder(folder: str) -> None:
    """Make *folder* the working folder of this process, and that of its temporary files.

    Nothing may change modes and times of files here, so copies of `shutil` have new ones.
    """
    os.chdir(folder)
    vars(shutil).update(copymode=_copy_nothing, copystat=_copy_nothing)
    tempfile.tempdir = folder
    os.environ["TMPDIR"] = folder  # noqa: TID251 - that of the candidate


def _copy_nothing(source: object, target: object, *, follow_symlinks: bool = True) -> None:
    """Stand in for functions of `shutil` that copy modes and times."""
    del source, target, follow_symlinks


def has_folder() -> bool:
    """Whether this process has a private folder."""
    return tempfile.tempdir is not None


def empty_folder(folder: str) -> None:
    """Remove all that *folder* contains.

    Raises:
        OSError: A candidate has made a folder that nobody may read.
    """
    for entry in list(Path(folder).iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def make_folder_for(name: str) -> Path:
    """Make a new folder whose name begins with *name*.

    Raises:
        OSError: The candidate's folder is full.
    """
    number = 0
    while True:
        folder = Path(tempfile.gettempdir(), f"{name}{number}")
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
        number += 1
