"""The checkpoints of one run: named by step, newest first, a few kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from infrastructure.training.checkpoints.checkpoint import CheckpointError, manifest_path
from infrastructure.training.checkpoints.sharded import read_state, shard_folders, write_state
from infrastructure.training.distributed.ranks import Ranks

_PATTERN = "step-*.pt"


class CheckpointFolder:
    """Writes and finds a run's checkpoints; with several ranks, each calls every method.

    Args:
        folder: Made with the first checkpoint; the same for all ranks.
        keep: How many are kept.
        device: Where tensors are loaded to.
        ranks: Of which the leader writes and deletes, and each its own shards.
    """

    def __init__(self, folder: Path, keep: int, device: torch.device, ranks: Ranks) -> None:
        self._folder, self._keep, self._device, self._ranks = folder, keep, device, ranks

    def save(self, step: int, state: dict[str, Any]) -> tuple[Path, int]:
        """Write the checkpoint of *step* and delete all but the newest.

        Returns:
            Its path and size in bytes.

        Raises:
            CheckpointError: It could not be written; the older ones still stand.
        """
        path = self._folder / f"step-{step:010d}.pt"
        size = write_state(path, state, self._ranks)
        if self._ranks.leads:
            self._prune(path)
        return path, size

    def _prune(self, newest: Path) -> None:
        kept = self.paths()
        for old in kept[self._keep :]:
            manifest_path(old).unlink(missing_ok=True)
            old.unlink(missing_ok=True)
        for partial in self._folder.glob(f".{_PATTERN}.*"):
            partial.unlink(missing_ok=True)
        living = {folder for path in kept[: self._keep] for folder in shard_folders(path)}
        living -= set(shard_folders(newest)[:-1])  # of attempts to write it that failed
        for folder in self._folder.glob("step-*.shards-*"):
            if folder not in living:
                shutil.rmtree(folder, ignore_errors=True)

    def paths(self) -> list[Path]:
        """The complete checkpoints, newest first."""
        found = (p for p in self._folder.glob(_PATTERN) if manifest_path(p).exists())
        return sorted(found, reverse=True)

    def newest(
        self, like: Mapping[str, Tensor], on_unreadable: Callable[[CheckpointError], None]
    ) -> tuple[Path, dict[str, Any]] | None:
        """Path and state of the newest readable checkpoint, or None.

        Args:
            like: See `read_state`.
            on_unreadable: Told of each newer one that is corrupt.
        """
        for path in self._ranks.same(self.paths()):
            try:
                return path, read_state(path, self._device, self._ranks, like)
            except CheckpointError as error:
                on_unreadable(error)
        return None
