"""The checkpoints of one run: named by step, newest first, a few kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from infrastructure.training.checkpoint import (
    CheckpointError,
    manifest_path,
    read_checkpoint,
    write_checkpoint,
)

_PATTERN = "step-*.pt"


class CheckpointFolder:
    """Writes and finds a run's checkpoints.

    Args:
        folder: Made with the first checkpoint.
        keep: How many are kept.
        device: Where tensors are loaded to.
    """

    def __init__(self, folder: Path, keep: int, device: torch.device) -> None:
        self._folder, self._keep, self._device = folder, keep, device

    def save(self, step: int, state: dict[str, Any]) -> tuple[Path, int]:
        """Write the checkpoint of *step* and delete all but the newest.

        Returns:
            Its path and size in bytes.

        Raises:
            CheckpointError: It could not be written; the older ones still stand.
        """
        path = self._folder / f"step-{step:010d}.pt"
        size = write_checkpoint(path, state)
        for old in self.paths()[self._keep :]:
            manifest_path(old).unlink(missing_ok=True)
            old.unlink(missing_ok=True)
        for partial in self._folder.glob(f".{_PATTERN}*.partial"):
            partial.unlink(missing_ok=True)
        return path, size

    def paths(self) -> list[Path]:
        """The complete checkpoints, newest first."""
        found = (p for p in self._folder.glob(_PATTERN) if manifest_path(p).exists())
        return sorted(found, reverse=True)

    def newest(
        self, on_unreadable: Callable[[CheckpointError], None]
    ) -> tuple[Path, dict[str, Any]] | None:
        """Path and state of the newest readable checkpoint, or None.

        Args:
            on_unreadable: Told of each newer one that is corrupt.
        """
        for path in self.paths():
            try:
                return path, read_checkpoint(path, self._device)
            except CheckpointError as error:
                on_unreadable(error)
        return None
