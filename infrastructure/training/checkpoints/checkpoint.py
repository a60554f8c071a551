"""Checkpoints: atomic, hashed, never unpickled, loadable under every precision.

A checkpoint is two files: ``NAME.pt`` (tensors) and ``NAME.pt.json``, its manifest with
size and SHA-256, written last. Without a manifest a checkpoint does not exist.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from infrastructure.files import JsonFileError, hash_file, read_model, write_model
from infrastructure.training.tensor_files import TensorFileError, read_tensors, replaced_tensors

FORMAT_VERSION = 1
_MOST_MANIFEST_BYTES = 1 << 16


class _Manifest(BaseModel):
    format: int
    bytes: int
    sha256: str


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read."""

    def __init__(self, path: Path, problem: str, remedy: str) -> None:
        super().__init__(path, problem, remedy)  # as args, which are pickled between ranks
        self.path = path

    def __str__(self) -> str:
        return "checkpoint {} {}: {}".format(*self.args)


def write_checkpoint(path: Path, state: dict[str, Any]) -> int:
    """Write *state* so that a crash at any moment leaves the old file or the new one.

    Args:
        path: Path ending in ``.pt``; its folder is made.
        state: Tensors, numbers, strings, and dicts, lists, tuples of them.

    Returns:
        Size in bytes.

    Raises:
        CheckpointError: The operating system refused.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_tensors(path, state) as written:
            manifest_path(path).unlink(missing_ok=True)
        manifest = _Manifest(format=FORMAT_VERSION, **written.model_dump())
        write_model(manifest_path(path), manifest)
    except OSError as error:
        raise CheckpointError(
            path, f"could not be written ({error})", "free space or fix the folder's permissions"
        ) from error
    return written.bytes


def read_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """Read and verify what `write_checkpoint` wrote; tensors land on *device*.

    Raises:
        CheckpointError: It is missing, incomplete, corrupt, or of a newer format.
    """
    remedy = "delete it to resume from the previous one, or start a new run"
    try:
        manifest = read_model(manifest_path(path), _Manifest, limit=_MOST_MANIFEST_BYTES)
        hashed = hash_file(path)
    except FileNotFoundError as error:
        if not path.exists() and not manifest_path(path).exists():
            raise CheckpointError(path, "does not exist", "correct the path") from error
        raise CheckpointError(
            path, f"is incomplete ({error.filename} is missing)", remedy
        ) from error
    except (OSError, JsonFileError) as error:
        raise CheckpointError(path, f"has an unreadable manifest ({error})", remedy) from error
    if manifest.format != FORMAT_VERSION:
        raise CheckpointError(
            path, f"has format {manifest.format}, this version reads {FORMAT_VERSION}", remedy
        )
    if (manifest.bytes, manifest.sha256) != (hashed.bytes, hashed.sha256):
        raise CheckpointError(path, "does not match its manifest's size and SHA-256", remedy)
    try:
        state = read_tensors(path, device)
    except TensorFileError as error:
        raise CheckpointError(path, f"cannot be loaded ({error})", remedy) from None
    if not isinstance(state, dict):
        raise CheckpointError(path, f"holds a {type(state).__name__}, not a dict", remedy)
    return state


def manifest_path(path: Path) -> Path:
    """Path of the manifest of the checkpoint at *path*."""
    return path.with_name(f"{path.name}.json")
