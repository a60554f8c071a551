"""Tensors on disk: replaced atomically, hashed, read without unpickling.

Nothing else in the library calls ``torch.save`` or ``torch.load``. Where the hash is kept is the
caller's choice: in a manifest, in an index, or before the content.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import torch

from infrastructure.files import FileHash, atomic_file, hash_bytes, hash_file


class TensorFileError(ValueError):
    """The content of a file is not plain tensors; says why in one line, without its name."""


@contextmanager
def replaced_tensors(path: Path, content: object) -> Iterator[FileHash]:
    """Write *content* beside *path*, and replace *path* by it at the end of the block.

    Args:
        path: File in a folder that exists.
        content: Tensors, numbers, strings, and dicts, lists, tuples of them.

    Yields:
        Size and hash of the new file, which is on the disk and not yet at *path*.

    Raises:
        OSError: Writing failed; *path* is unchanged.
    """
    with atomic_file(path) as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # how torch reports a full disk
            raise OSError(str(error)) from error
        file.flush()
        yield hash_file(Path(file.name))


def write_tensors(path: Path, content: object) -> FileHash:
    """Replace *path* by *content* atomically; see `replaced_tensors`.

    Raises:
        OSError: Writing failed; *path* is unchanged.
    """
    with replaced_tensors(path, content) as written:
        pass
    return written


def tensor_bytes(content: object) -> tuple[bytes, FileHash]:
    """What `write_tensors` would write, for a file that is named by its hash or begins with it."""
    buffer = BytesIO()
    torch.save(content, buffer)
    data = buffer.getvalue()
    return data, hash_bytes(data)


def read_tensors(
    file: Path | BinaryIO | bytes, device: torch.device | str = "cpu", *, mapped: bool = False
) -> Any:  # noqa: ANN401
    """The content that was written, its tensors on *device*. Check the hash first.

    Args:
        mapped: Whether to map the tensors of a path into memory, so that processes share its pages;
            for a file that is never changed in place. A tensor that is written to is copied.

    Raises:
        TensorFileError: torch cannot read it without unpickling, or the file is missing.
    """
    source = BytesIO(file) if isinstance(file, bytes) else file
    try:
        return torch.load(source, map_location=device, weights_only=True, mmap=mapped)
    except MemoryError:
        raise
    except Exception as error:  # torch raises many types of exceptions for damaged bytes
        raise TensorFileError(_describe(error)) from None


def _describe(error: Exception) -> str:
    """Why ``torch.load`` failed, in one line and without torch's advice to unpickle the file."""
    lines = (line.strip() for line in str(error).splitlines())
    advice = ("weights_only", "weights only", "torch.load")
    facts = (
        line for line in lines if line and not any(phrase in line.lower() for phrase in advice)
    )
    fact = next(facts, "").removeprefix("WeightsUnpickler error: ")
    fact = fact.partition(" was not an allowed")[0]  # what follows is how to allow it
    return f"{type(error).__name__}: {fact}" if fact else type(error).__name__
