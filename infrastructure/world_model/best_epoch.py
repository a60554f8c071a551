"""Keeps the weights of the epoch that predicted the calibration groups best.

More steps than the data bears do no harm then. On disk, since a resumed attempt has to know
what the epochs before it reached.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TypedDict, cast

import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.files import write_atomically
from infrastructure.world_model.artefact import ModelFileError, read_tensors


class Kept(TypedDict):
    """What the file holds."""

    loss: float
    network: dict[str, Tensor]


class BestEpoch:
    """Remembers the best weights so far in one file.

    Args:
        path: Read if it exists, replaced atomically by each better epoch.

    Raises:
        ModelFileError: *path* exists and is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.loss = float("inf")
        if path.exists():
            self.loss = self._read()["loss"]

    def consider(self, loss: float, network: Module) -> None:
        """Keep the weights of *network* if *loss* is the lowest yet."""
        if not loss < self.loss:
            return
        self.loss = loss
        buffer = BytesIO()
        torch.save({"loss": loss, "network": network.state_dict()}, buffer)
        write_atomically(self._path, buffer.getvalue())

    def restore(self, network: Module) -> None:
        """Give *network* the weights kept; none are kept while no epoch had a finite loss.

        Raises:
            ModelFileError: They are damaged, or of another network.
        """
        if not self._path.exists():
            return
        try:
            network.load_state_dict(self._read()["network"])
        except RuntimeError as error:
            raise ModelFileError(self._path, f"it is of another network ({error})") from error

    def _read(self) -> Kept:
        kept = read_tensors(self._path, self._path.read_bytes())
        if not isinstance(kept, dict) or kept.keys() != {"loss", "network"}:
            raise ModelFileError(self._path, "it holds no weights of an epoch")
        return cast(Kept, kept)
