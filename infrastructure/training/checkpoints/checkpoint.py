"""Checkpoints: atomic, hashed, never unpickled, loadable under every precision.

A checkpoint is two files: ``NAME.pt`` (``torch.save``) and ``NAME.pt.json``, its manifest with
size and SHA-256, written last. Without a manifest a checkpoint does not exist.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from infrastructure.files import atomic_file, write_atomically

FORMAT_VERSION = 1


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
        with atomic_file(path) as file:
            torch.save(state, file)
            file.flush()
            size, digest = file.tell(), _sha256(Path(file.name))
            manifest_path(path).unlink(missing_ok=True)
        manifest = {"format": FORMAT_VERSION, "bytes": size, "sha256": digest}
        write_atomically(manifest_path(path), json.dumps(manifest))
    except (OSError, RuntimeError) as error:  # torch wraps a full disk in RuntimeError
        raise CheckpointError(
            path, f"could not be written ({error})", "free space or fix the folder's permissions"
        ) from error
    return size


def read_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """Read and verify what `write_checkpoint` wrote; tensors land on *device*.

    Raises:
        CheckpointError: It is missing, incomplete, corrupt, or of a newer format.
    """
    remedy = "delete it to resume from the previous one, or start a new run"
    try:
        manifest = json.loads(manifest_path(path).read_text())
        expected = (manifest["format"], manifest["bytes"], manifest["sha256"])
        found = (FORMAT_VERSION, path.stat().st_size, _sha256(path))
    except FileNotFoundError as error:
        if not path.exists() and not manifest_path(path).exists():
            raise CheckpointError(path, "does not exist", "correct the path") from error
        raise CheckpointError(
            path, f"is incomplete ({error.filename} is missing)", remedy
        ) from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(path, f"has an unreadable manifest ({error!r})", remedy) from error
    if expected[0] != FORMAT_VERSION:
        raise CheckpointError(
            path, f"has format {expected[0]}, this version reads {FORMAT_VERSION}", remedy
        )
    if expected != found:
        raise CheckpointError(path, "does not match its manifest's size and SHA-256", remedy)
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch raises many types of exceptions for damaged bytes
        why = describe_load_error(error)
        raise CheckpointError(path, f"cannot be loaded ({why})", remedy) from None
    if not isinstance(state, dict):
        raise CheckpointError(path, f"holds a {type(state).__name__}, not a dict", remedy)
    return state


def describe_load_error(error: Exception) -> str:
    """Why ``torch.load`` failed, in one line and without torch's advice to unpickle the file."""
    lines = (line.strip() for line in str(error).splitlines())
    advice = ("weights_only", "weights only", "torch.load")
    facts = (line for line in lines if line and not any(each in line.lower() for each in advice))
    fact = next(facts, "").removeprefix("WeightsUnpickler error: ")
    fact = fact.partition(" was not an allowed")[0]  # what follows is how to allow it
    return f"{type(error).__name__}: {fact}" if fact else type(error).__name__


def manifest_path(path: Path) -> Path:
    """Path of the manifest of the checkpoint at *path*."""
    return path.with_name(f"{path.name}.json")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
