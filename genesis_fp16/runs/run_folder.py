"""A run's folder: which of its files are weights, and how they, or all of it, go."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

WEIGHTS_REMOVED = "weights-removed.txt"  # lies in the folder of a run and says so
RUN_ID = re.compile(r"[0-9]{8}T[0-9]{6}-[0-9a-f]{8}")  # what a run's folder is named
_WEIGHTS = re.compile(r"checkpoints(\.set-aside-\d+)?|best-epoch\.pt|\.best-epoch\.pt\..+")


def is_folder(path: Path) -> bool:
    """Whether *path* is a folder and no link to one; OSError where nobody may look."""
    with suppress(FileNotFoundError):
        return stat.S_ISDIR(path.lstat().st_mode)
    return False


def weights_of(run_folder: Path) -> list[Path]:
    """Files and folders in *run_folder* that hold weights, but links; OSError passes."""
    if (run_folder / WEIGHTS_REMOVED).exists():
        return []
    found = [path for path in run_folder.iterdir() if _WEIGHTS.fullmatch(path.name)]
    return [path for path in found if not path.is_symlink()]


def remove_weights(run_folder: Path, why: str) -> int:
    """Delete the weights and leave word of *why*; the bytes freed. OSError passes."""
    freed = sum(delete(path) for path in weights_of(run_folder))
    with (run_folder / WEIGHTS_REMOVED).open("x") as said:
        said.write(f"{why}\n")
    return freed


def why_weights_removed(run_folder: Path) -> str:
    """What `remove_weights` has left word of; empty where it removed nothing."""
    said = run_folder / WEIGHTS_REMOVED
    with suppress(OSError, ValueError):
        return said.read_text().strip() if said.is_file() else ""
    return ""


def told_removal(run_folder: Path, recorded: str | None) -> str:
    """What is *recorded* of the folder's removal, and where some of it is left, that; or empty."""
    if recorded and os.path.lexists(run_folder):
        return f"some is left in {run_folder}, see run_files_not_removed; the rest was {recorded}"
    return recorded or ""


def delete(path: Path) -> int:
    """Delete *path* with everything in it but links; the bytes freed. OSError passes."""
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
    for folder in reversed(folders):  # what lies in a folder comes before it
        if not any(folder.iterdir()):
            folder.rmdir()
    return freed
