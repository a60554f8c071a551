"""Network weights on disk, read without unpickling, and the best epoch's weights.

The best epoch is kept on disk, because a resumed attempt must know the loss of earlier epochs.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from infrastructure.files import write_atomically
from infrastructure.training.checkpoints import describe_load_error
from infrastructure.training.checkpoints.fit import compare_model, in_one_line


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
        why = describe_load_error(error)
        raise ModelFileError(path, f"torch cannot read it ({why})") from None
    return content


_DIGEST_BYTES = 65  # in hexadecimal digits, and a line end


def _refuse(error: ModelFileError) -> None:
    raise error


class BestEpoch:
    """Keeps the weights of the epoch with the lowest held-out loss in one file.

    Training longer than the data supports is so harmless. The file begins with its SHA-256. A
    damaged one counts as none: the next epoch replaces it.

    Args:
        path: File that is read if it exists, and replaced atomically by each better epoch.
        on_damage: Called, once, with what is wrong with *path*; by default it is raised.
    """

    def __init__(self, path: Path, on_damage: Callable[[ModelFileError], None] = _refuse) -> None:
        self._path, self._on_damage = path, on_damage
        self.loss = float("inf")
        self._damaged = False
        if (saved := self._read()) is not None:
            self.loss = saved["loss"]

    def save_if_better(self, loss: float, network: Module) -> None:
        """Save the weights of *network* if *loss* is the lowest so far; NaN never is."""
        if not loss < self.loss:
            return
        buffer = BytesIO()
        torch.save({"loss": loss, "network": network.state_dict()}, buffer)
        content = buffer.getvalue()
        if os.path.lexists(self._path) and not self._path.is_file():
            self._path.rename(self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}"))
        write_atomically(self._path, _digest(content) + content)
        self.loss, self._damaged = loss, False

    def restore(self, network: Module) -> None:
        """Load the saved weights into *network*; leave it as it is if there are none for it."""
        saved = self._read()
        if saved is None:
            return
        if problems := in_one_line(compare_model(saved["network"], network)):
            self._report(f"the weights are those of another network: it {problems}")
        else:
            network.load_state_dict(saved["network"])

    def _read(self) -> dict[str, Any] | None:
        """The saved epoch; None, after a report, if it is damaged."""
        if self._damaged or not os.path.lexists(self._path):
            return None
        try:
            if not self._path.is_file():
                raise ModelFileError(self._path, "it is not a regular file")
            data = self._path.read_bytes()
            if data[:_DIGEST_BYTES] != _digest(data[_DIGEST_BYTES:]):
                raise ModelFileError(self._path, "it does not match its SHA-256")
            saved = read_tensors(self._path, data[_DIGEST_BYTES:])
        except (OSError, ModelFileError) as error:
            self._report(error)
            return None
        if (
            not isinstance(saved, dict)
            or saved.keys() != {"loss", "network"}
            or not isinstance(saved["loss"], int | float)
        ):
            self._report("it does not hold the weights of an epoch")
            return None
        return saved

    def _report(self, problem: ModelFileError | OSError | str) -> None:
        self._damaged = True
        if not isinstance(problem, ModelFileError):
            problem = ModelFileError(self._path, str(problem))
        self._on_damage(problem)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode() + b"\n"
