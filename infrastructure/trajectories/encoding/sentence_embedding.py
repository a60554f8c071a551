"""Texts as vectors of a local embedding model, in the format of model2vec; nothing is downloaded.

Such a model holds one vector for each token; a text is the mean of its tokens' vectors. Models of
this kind are small and fast on a CPU.

Shapes: N texts, W numbers of a vector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from infrastructure.trajectories.encoding.standardiser import Standardiser
from infrastructure.trajectories.schema import is_missing

FILES = ("config.json", "model.safetensors", "tokenizer.json")
INSTALL = "pip install 'genesis-fp16[text]'"


class EmbeddingError(ValueError):
    """An embedding model is missing, damaged, or another one than a saved model was trained with.

    Args:
        name: The name of the embedding model, as the field declares it.
        problem: What is wrong, and the remedy.
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"embedding model {name!r}: {problem}")


class _Model(Protocol):
    dim: int

    def encode(
        self, sentences: Sequence[str], *, use_multiprocessing: bool
    ) -> NDArray[np.float32]: ...


class SentenceEmbedding:
    """An embedding model and the hash of its files.

    Args:
        name: The folder of the model, or ``PACKAGE:FOLDER`` for a folder in an installed package.

    Attributes:
        name: As given.
        sha256: Hash of the model's files.
        width: Numbers of a vector.

    Raises:
        EmbeddingError: The folder is missing or damaged, or model2vec is not installed.
    """

    def __init__(self, name: str) -> None:
        self.name, folder = name, _folder(name)
        digest = hashlib.sha256()
        for file in FILES:
            try:
                digest.update(hashlib.sha256((folder / file).read_bytes()).digest())
            except OSError as error:
                raise EmbeddingError(name, f"{folder / file} cannot be read ({error})") from error
        self.sha256 = digest.hexdigest()
        try:
            from model2vec import StaticModel
        except ModuleNotFoundError as error:
            raise EmbeddingError(name, f"{error.name} is not installed: {INSTALL}") from error
        try:
            self._model = cast(_Model, StaticModel.from_pretrained(folder, force_download=False))
        except Exception as error:  # three libraries read the files, and each has its own
            raise EmbeddingError(name, f"{folder} holds no model of model2vec: {error}") from error
        self.width = int(self._model.dim)

    def encode(self, values: Sequence[object]) -> NDArray[np.float64]:
        """Embed *values*: strings, lists of tokens, or missing; each distinct one once.

        Returns:
            ``[N, W]``; NaN for texts that are missing or blank.
        """
        texts = [
            "" if is_missing(value) else value if isinstance(value, str) else " ".join(_list(value))
            for value in values
        ]
        distinct = [text for text in dict.fromkeys(texts) if text.strip()]
        places = {text: place for place, text in enumerate(distinct)}
        vectors = np.full((len(distinct) + 1, self.width), np.nan)
        if distinct:
            vectors[:-1] = self._model.encode(distinct, use_multiprocessing=False)
        return vectors[[places.get(text, len(distinct)) for text in texts]]


@cache
def sentence_embedding(name: str) -> SentenceEmbedding:
    """Return the model called *name*, which is loaded once in a process; see there."""
    return SentenceEmbedding(name)


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedEmbedding:
    """An embedding model, and the statistics of its vectors in the training data."""

    model: SentenceEmbedding
    standardiser: Standardiser

    @classmethod
    def fit(cls, name: str, values: Sequence[object]) -> FittedEmbedding:
        """Compute the statistics of *values*, the texts of the training groups.

        Raises:
            EmbeddingError: See `SentenceEmbedding`.
        """
        model = sentence_embedding(name)
        return cls(model=model, standardiser=Standardiser.fit(model.encode(values), squeeze=False))

    @property
    def width(self) -> int:
        """Number of inputs."""
        return self.standardiser.width

    def apply(self, values: Sequence[object]) -> Tensor:
        """Standardised vectors, ``[N, W]`` float32; 0 for missing and blank texts."""
        return self.standardiser.apply(self.model.encode(values))

    def to_json(self) -> dict[str, object]:
        """Return what `from_json` needs: the name and the hash of the model, not the model."""
        return {
            "name": self.model.name,
            "sha256": self.model.sha256,
            "standardiser": self.standardiser.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> FittedEmbedding:
        """Rebuild what `to_json` described.

        Raises:
            EmbeddingError: The embedding model is missing, or another one.
            KeyError, TypeError, ValueError: *value* does not describe an embedding.
        """
        name, sha256 = str(value["name"]), str(value["sha256"])
        standardiser = Standardiser.from_json(
            cast(Mapping[str, Sequence[float]], value["standardiser"])
        )
        model = sentence_embedding(name)
        if (model.sha256, model.width) != (sha256, len(standardiser.mean)):
            raise EmbeddingError(
                name,
                f"its files have the hash {model.sha256:.12}, but the model was trained with "
                f"{sha256:.12}: put those files back, or train again",
            )
        return cls(model=model, standardiser=standardiser)


def _folder(name: str) -> Path:
    package, colon, inside = name.partition(":")
    if not colon:
        folder = Path(name)
    else:
        try:
            spec = find_spec(package)
        except (ImportError, ValueError):
            spec = None
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        if not places:
            raise EmbeddingError(name, f"the package {package!r} is not installed: install it")
        folder = Path(places[0]) / inside
    if not folder.is_dir():
        raise EmbeddingError(
            name,
            f"{folder.absolute()} is not a folder, and nothing is downloaded: save a model of "
            f"model2vec there, or name another folder in Text(embedding=...)",
        )
    return folder


def _list(value: object) -> Sequence[str]:
    return cast("Sequence[str]", value)
