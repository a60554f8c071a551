"""Regular, atomic, hashed and JSON files. Imports neither torch nor the daemon."""

from infrastructure.files.atomic import (
    ABANDONED_SECONDS,
    Ignore,
    atomic_file,
    copy_folder,
    flush_folder,
    open_regular,
    read_limited,
    remove_abandoned,
    write_atomically,
)
from infrastructure.files.file_hash import FileHash, hash_bytes, hash_file
from infrastructure.files.json_files import (
    JsonFileError,
    first_problem,
    json_text,
    read_json,
    read_model,
    write_json,
    write_model,
)

__all__ = [
    "ABANDONED_SECONDS",
    "FileHash",
    "Ignore",
    "JsonFileError",
    "atomic_file",
    "copy_folder",
    "first_problem",
    "flush_folder",
    "hash_bytes",
    "hash_file",
    "json_text",
    "open_regular",
    "read_json",
    "read_limited",
    "read_model",
    "remove_abandoned",
    "write_atomically",
    "write_json",
    "write_model",
]
