"""Atomic file replacement. Imports neither torch nor the daemon."""

from infrastructure.files.atomic import (
    atomic_file,
    flush_folder,
    remove_abandoned,
    write_atomically,
)

__all__ = ["atomic_file", "flush_folder", "remove_abandoned", "write_atomically"]
