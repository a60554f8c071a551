"""Files of a frozen experiment: atomic when written, verified and limited when read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path

import torch
from torch import Tensor

from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import Role
from infrastructure.events.plain_text import plain
from infrastructure.files import FileHash, atomic_file, hash_file, open_regular, write_json
from infrastructure.precision_lab.environment import describe_environment
from infrastructure.precision_lab.frozen.manifest import (
    FORMAT,
    MANIFEST,
    FrozenError,
    Manifest,
    read_manifest,
)
from infrastructure.training.tensor_files import TensorFileError, read_tensors, write_tensors
from infrastructure.trajectories import ReplayBuffer

_PARTS = ("weights", "batches", "data")
_BATCH_DTYPES = {torch.float32, torch.float64, torch.int64, torch.int32, torch.bool, torch.uint8}


class FrozenWriter:
    """Writes the files of one frozen experiment, the manifest last.

    Without a manifest nothing is frozen, so that an interrupted freeze can be repeated.

    Args:
        path: Folder; it must not hold anything but the rest of an interrupted freeze.

    Raises:
        FrozenError: It holds a frozen experiment, or something else.
        OSError: It cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[str, FileHash] = {}
        self._dtypes: dict[str, dict[str, str]] = {}
        check_new(path)
        for part in _PARTS:
            (path / part).mkdir(parents=True, exist_ok=True)

    def add_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> str:
        """Write *tensors* to the file *name*; return the name.

        Raises:
            FrozenError: The disk refuses.
        """
        kept = {key: _alone(tensor.detach().cpu()) for key, tensor in tensors.items()}
        try:
            self._files[name] = write_tensors(self.path / name, kept)
        except OSError as error:
            raise FrozenError(
                self.path / name,
                f"could not be written ({error}): free some space and freeze again",
            ) from error
        self._dtypes[name] = {key: _type_name(tensor) for key, tensor in kept.items()}
        return name

    def copy_segment(self, name: str, buffer: ReplayBuffer, segment: str, length: int) -> None:
        """Copy the first *length* bytes of a *segment* of *buffer* to the file *name*.

        Raises:
            OSError: The disk refuses, or the segment is shorter.
        """
        with atomic_file(self.path / name) as file:
            copied = buffer.copy_segment(segment, length, file)
            if copied < length:
                raise OSError(f"{segment} has {copied} bytes, {length} were recorded")
        self._files[name] = hash_file(self.path / name)

    def finish(
        self,
        *,
        weights: Mapping[Role, str],
        batches: tuple[str, ...],
        device: torch.device,
        **details: object,
    ) -> Manifest:
        """Write the manifest; return it.

        Args:
            weights: File of each role.
            batches: Files of the batches.
            device: Where the freeze computed.
            **details: The other fields of `Manifest`.

        Raises:
            OSError: The disk refuses; nothing is frozen.
        """
        manifest = Manifest.model_validate(
            {
                "format": FORMAT,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "environment": describe_environment(device),
                "weights": dict(weights),
                "batches": batches,
                "files": self._files,
                "dtypes": self._dtypes,
                **details,
            }
        )
        write_json(self.path / MANIFEST, manifest.model_dump(mode="json"))
        return manifest


def check_new(path: Path) -> None:
    """Check that an experiment may be frozen in the folder *path*, which need not exist.

    Raises:
        FrozenError: It holds anything but the rest of an interrupted freeze.
    """
    if (path / MANIFEST).exists():
        raise FrozenError(path, "holds a frozen experiment: choose another folder")
    if path.exists():
        others = sorted(entry.name for entry in path.iterdir() if entry.name not in _PARTS)
        if others:
            raise FrozenError(path, f"is not empty ({others[0]}): choose another folder")


class FrozenFolder:
    """Reads a frozen experiment; no file is used whose hash is not that of the manifest.

    Args:
        path: The folder.

    Attributes:
        path: As given.
        manifest: Its manifest.

    Raises:
        FrozenError: The manifest cannot be used; see `read_manifest`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read_manifest(path)

    def weights(self, role: Role) -> dict[str, Tensor]:
        """Float32 weights and buffers of *role*.

        Raises:
            FrozenError: There are none, or the file is damaged, or holds something else.
        """
        name = self.manifest.weights.get(role)
        if name is None:
            raise FrozenError(self.path, f"has no weights of the role {role}: freeze again")
        return self._tensors(name)

    def batches(self) -> list[Batch]:
        """The batches, on the CPU.

        Raises:
            FrozenError: A file is damaged, or holds something else.
        """
        return [self._tensors(name) for name in self.manifest.batches]

    def verify(self) -> None:
        """Check the hash of every file.

        Raises:
            FrozenError: One is missing, truncated or altered.
        """
        for name in self.manifest.files:
            with self._verified(name):
                pass

    def _tensors(self, name: str) -> dict[str, Tensor]:
        path = self.path / name
        with self._verified(name) as file:
            try:
                tensors = read_tensors(file)
            except (TensorFileError, MemoryError) as error:
                why = plain(" ".join(str(error).split()), 200)
                raise FrozenError(path, f"holds no tensors ({why}): freeze again") from None
        if not isinstance(tensors, dict) or not tensors:
            raise FrozenError(path, "does not hold tensors by name: freeze again")
        limit = self.manifest.files[name].bytes
        for key, tensor in tensors.items():
            problem = _problem(key, tensor, limit)
            if problem:
                raise FrozenError(path, f"{problem}: freeze again")
        return tensors

    def _verified(self, name: str) -> BufferedReader:
        """The file *name*, open at its beginning, with the size and hash of the manifest."""
        path, expected = self.path / name, self.manifest.files[name]
        try:
            file = open_regular(path)
        except OSError as error:
            raise FrozenError(path, f"cannot be read ({error.strerror}): freeze again") from error
        try:
            size = os.fstat(file.fileno()).st_size
            if size != expected.bytes:
                raise FrozenError(
                    path,
                    f"has {size} bytes, the manifest says {expected.bytes}: it is "
                    "truncated or belongs to another freeze; restore it, or freeze again",
                )
            if hash_file(file) != expected:
                raise FrozenError(
                    path,
                    "is not what was frozen (its SHA-256 differs from the manifest's): it is "
                    "damaged or holds other weights; restore it, or freeze again",
                )
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return file


def _alone(tensor: Tensor) -> Tensor:
    """*tensor*, contiguous, and copied if it is a part of a larger one, which would be saved."""
    tensor = tensor.contiguous()
    whole = tensor.untyped_storage().nbytes()
    return tensor if whole == tensor.numel() * tensor.element_size() else tensor.clone()


def _problem(key: object, tensor: object, limit: int) -> str:
    """Why a value that was read is not used; empty if it may be."""
    if not isinstance(key, str) or not isinstance(tensor, Tensor):
        return "does not hold tensors by name"
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return f"{key} is not a plain tensor"
    if tensor.dtype not in _BATCH_DTYPES:
        return f"{key} is {_type_name(tensor)}"
    if not tensor.is_contiguous() or tensor.numel() * tensor.element_size() > limit:
        return f"{key} claims more elements than the file holds"
    return ""


def _type_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
