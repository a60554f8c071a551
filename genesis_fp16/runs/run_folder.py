"""A run's folder: which of its files hold weights, and how they or all files are removed."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

WEIGHTS_REMOVED = "weights-removed.txt"  # in the run's folder; holds the reason
RUN_ID = re.compile(r"[0-9]{8}T[0-9]{6}-[0-9a-f]{8}")  # also the name of the run's folder
_WEIGHTS = re.compile(r"checkpoints(\.set-aside-\d+)?|best-epoch\.pt|\.best-epoch\.pt\..+")


def is_folder(path: Path) -> bool:
    """Whether *path* is a folder, not a link to one; raises OSError if access is denied."""
    with suppress(FileNotFoundError):
        return stat.S_ISDIR(path.lstat().st_mode)
    return False


def weights_of(run_folder: Path) -> list[Path]:
    """Files and folders in *run_folder* that hold weights, without links; may raise OSError."""
    if (run_folder / WEIGHTS_REMOVED).exists():
        return []
    found = [path for path in run_folder.iterdir() if _WEIGHTS.fullmatch(path.name)]
    return [path for path in found if not path.is_symlink()]


def remove_weights(run_folder: Path, reason: str) -> int:
    """Delete the weights and record the *reason*; return the bytes freed. May raise OSError."""
    freed = sum(delete(path) for path in weights_of(run_folder))
    with (run_folder / WEIGHTS_REMOVED).open("x") as record:
        record.write(f"{reason}\n")
    return freed


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


def delete(path: Path) -> int:
    """Delete *path* and everything in it but links; return the bytes freed. May raise OSError."""
    freed, folders, left = 0, [], [path]
    while left:
        each = left.pop()
        found = each.lstat()
        if stat.S_ISDIR(found.st_mode):
            folders.append(each)
            left.extend(each.iterdir())
        elif not stat.S_ISLNK(found.st_mode):
            each.unlink()
            freed += found.st_size
    for folder in reversed(folders):  # a folder comes after its content
        if not any(folder.iterdir()):
            folder.rmdir()
    return freed
