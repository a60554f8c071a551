"""Atomic file replacement, regular files and strict JSON. Imports neither torch nor the daemon."""

from infrastructure.files.atomic import (
    ABANDONED_SECONDS,
    Ignore,
    atomic_file,
    copy_folder,
    flush_folder,
    open_regular,
    remove_abandoned,
    write_atomically,
)
from infrastructure.files.strict_json import json_text, write_json

__all__ = [
    "ABANDONED_SECONDS",
    "Ignore",
    "atomic_file",
    "copy_folder",
    "flush_folder",
    "json_text",
    "open_regular",
    "remove_abandoned",
    "write_atomically",
    "write_json",
]
