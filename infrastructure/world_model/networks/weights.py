"""Network weights on disk, read without unpickling, and the best epoch's weights.

The best epoch is kept on disk, because a resumed attempt must know the loss of earlier epochs.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from infrastructure.files import write_atomically


class ModelFileError(ValueError):
    """A saved model cannot be used."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(
            f"cannot load the world model from {path}: {problem}. Restore {path.parent} from a "
            f"copy, or remove it: the next training writes a new one"
        )
        self.path = path


def read_tensors(path: Path, data: bytes) -> object:
    """Deserialise *data*, the content of *path*, to the CPU without unpickling.

    Raises:
        ModelFileError: torch cannot read it.
    """
    try:
        content: object = torch.load(BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types of exceptions for damaged bytes
        raise ModelFileError(path, f"torch cannot read it ({error})") from error
    return content


class BestEpoch:
    """Keeps the weights of the epoch with the lowest held-out loss in one file.

    Training longer than the data supports is so harmless.

    Args:
        path: File that is read if it exists, and replaced atomically by each better epoch.

    Raises:
        ModelFileError: *path* exists and is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.loss = float("inf")
        if path.exists():
            self.loss = self._read()["loss"]

    def save_if_better(self, loss: float, network: Module) -> None:
        """Save the weights of *network* if *loss* is the lowest so far; NaN never is."""
        if not loss < self.loss:
            return
        self.loss = loss
        buffer = BytesIO()
        torch.save({"loss": loss, "network": network.state_dict()}, buffer)
        write_atomically(self._path, buffer.getvalue())

    def restore(self, network: Module) -> None:
        """Load the saved weights into *network*; do nothing if no epoch had a finite loss.

        Raises:
            ModelFileError: The file is damaged, or holds the weights of another network.
        """
        if not self._path.exists():
            return
        try:
            network.load_state_dict(self._read()["network"])
        except RuntimeError as error:
            problem = f"the weights are those of another network ({error})"
            raise ModelFileError(self._path, problem) from error

    def _read(self) -> dict[str, Any]:
        saved = read_tensors(self._path, self._path.read_bytes())
        if not isinstance(saved, dict) or saved.keys() != {"loss", "network"}:
            raise ModelFileError(self._path, "it does not hold the weights of an epoch")
        return saved
