"""A run's folder: which of its files are weights, and how they, or all of it, go."""

from __future__ import annotations

import re
import stat
from contextlib import suppress
from pathlib import Path

WEIGHTS_REMOVED = "weights-removed.txt"  # lies in the folder of a run and says so
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
    with suppress(OSError, ValueError):
        return (run_folder / WEIGHTS_REMOVED).read_text().strip()
    return ""


def delete(path: Path) -> int:
    """Delete *path* with everything in it but links; the bytes freed. OSError passes."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        return 0
    if not stat.S_ISDIR(found.st_mode):
        path.unlink()
        return found.st_size
    freed = sum([delete(child) for child in path.iterdir()])
    if not any(path.iterdir()):
        path.rmdir()
    return freed
