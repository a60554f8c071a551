"""Size and SHA-256 of a file, as its manifest records them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, BinaryIO

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from infrastructure.files.atomic import open_regular


class FileHash(BaseModel):
    """Size and hash of a file.

    Attributes:
        bytes: Its size.
        sha256: Its SHA-256, hexadecimal.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


def hash_file(file: Path | BinaryIO) -> FileHash:
    """Size and hash of *file*; of an open one, from its position to its end, where it stays.

    Raises:
        OSError: It cannot be read, or is not a regular file.
    """
    if isinstance(file, Path):
        with open_regular(file) as opened:
            return hash_file(opened)
    start = file.tell()
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    return FileHash(bytes=file.tell() - start, sha256=digest)


def hash_bytes(content: bytes) -> FileHash:
    """Size and hash of a file with this *content*."""
    return FileHash(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
