"""The checkpoints of one run: named by step; only the newest few are kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from infrastructure.training.checkpoints.checkpoint import CheckpointError, manifest_path
from infrastructure.training.checkpoints.sharded import read_state, shard_folders, write_state
from infrastructure.training.distributed import Ranks

_PATTERN = "step-*.pt"


class CheckpointFolder:
    """Writes and finds a run's checkpoints; with several ranks, each calls every method.

    Args:
        folder: Folder, the same for all ranks; made with the first checkpoint.
        ranks: The ranks; rank 0 writes and deletes, and each rank writes its own shards.
    """

    def __init__(self, folder: Path, keep: int, device: torch.device, ranks: Ranks) -> None:
        self._folder, self._keep, self._device, self._ranks = folder, keep, device, ranks

    def save(self, step: int, state: dict[str, Any]) -> tuple[Path, int]:
        """Write the checkpoint of *step*, delete all but the newest; return path and size in bytes.

        Raises:
            CheckpointError: It could not be written; the older ones are kept.
        """
        path = self._folder / f"step-{step:010d}.pt"
        size = write_state(path, state, self._ranks)
        if self._ranks.is_rank_zero:
            self._prune(path)
        return path, size

    def _prune(self, newest: Path) -> None:
        kept = self.paths()
        for old in kept[self._keep :]:
            manifest_path(old).unlink(missing_ok=True)
            old.unlink(missing_ok=True)
        self._remove_partial()
        kept_shards = {folder for path in kept[: self._keep] for folder in shard_folders(path)}
        kept_shards -= set(shard_folders(newest)[:-1])  # left by failed attempts to write it
        for folder in self._folder.glob("step-*.shards-*"):
            if folder not in kept_shards:
                shutil.rmtree(folder, ignore_errors=True)

    def _remove_partial(self) -> None:
        """Delete what a process that was killed while it wrote a checkpoint has left."""
        unfinished = [p for p in self._folder.glob(_PATTERN) if not manifest_path(p).exists()]
        temporary = self._folder.glob(f".{_PATTERN}.*")
        for path in (*unfinished, *temporary):
            path.unlink(missing_ok=True)

    def paths(self) -> list[Path]:
        """The complete checkpoints, newest first."""
        complete = (p for p in self._folder.glob(_PATTERN) if manifest_path(p).exists())
        return sorted(complete, reverse=True)

    def newest(
        self, like: Mapping[str, Tensor], on_unreadable: Callable[[CheckpointError], None]
    ) -> tuple[Path, dict[str, Any]] | None:
        """Path and state of the newest readable checkpoint, or None.

        Deletes what a killed process has left half-written; call it before the first `save`.

        Args:
            like: See `read_state`.
            on_unreadable: Called with the error of each newer checkpoint that is corrupt.
        """
        if self._ranks.is_rank_zero:
            self._remove_partial()
        for path in self._ranks.broadcast(self.paths()):
            try:
                return path, read_state(path, self._device, self._ranks, like)
            except CheckpointError as error:
                on_unreadable(error)
        return None
