"""Network weights on disk, read without unpickling."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import torch

from infrastructure.training.checkpoints import describe_load_error


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
