"""Atomic file replacement. Imports neither torch nor the daemon."""

from infrastructure.files.atomic import (
    ABANDONED_SECONDS,
    Ignore,
    atomic_file,
    copy_folder,
    flush_folder,
    remove_abandoned,
    write_atomically,
)

__all__ = [
    "ABANDONED_SECONDS",
    "Ignore",
    "atomic_file",
    "copy_folder",
    "flush_folder",
    "remove_abandoned",
    "write_atomically",
]
