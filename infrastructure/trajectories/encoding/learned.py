"""What the training data says about values that a row lacks or that are unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from infrastructure.agent_contract.transition import Box, Discrete, FieldType
from infrastructure.trajectories.encoding.quantile_bins import QuantileBins
from infrastructure.trajectories.encoding.sentence_embedding import FittedEmbedding
from infrastructure.trajectories.encoding.text_column import TextColumn
from infrastructure.trajectories.schema import is_missing, label_of

MIN_GAPS = 5
"""Training rows in which a value must be missing so that its effect is learned."""

EXAMPLES = 64
"""Training rows whose values stand for one that a row lacks without explanation."""

_DIGITS = 7  # of an example's numbers, which are encoded in float32


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """What the training data says about missing and unknown values, words, and steps.

    Attributes:
        shares: Means of each `Discrete` field's one-hot columns.
        gaps: Whether the model has learned what a missing value means, of each field that has
            gaps; of a `Box`, by dimension.
        texts: Vocabularies of each `Text` field.
        bins: Bins of scalar `Box` fields of the observation that are not predicted, by key.
        embeddings: Embedding models of `Text` fields that have one, by key.
        too_large: Whether the training data had numbers that are infinite or too large, of each
            `Box` that had some, by dimension. They are gaps then, and not far outside of it.
        examples: Values of at most `EXAMPLES` training rows, by key of a `Box` or `Discrete` field.
            Empty for models saved by a version that took the mean for what is missing.
    """

    shares: Mapping[str, Sequence[float]]
    gaps: Mapping[str, Sequence[bool]]
    texts: Mapping[str, TextColumn]
    bins: Mapping[str, QuantileBins]
    embeddings: Mapping[str, FittedEmbedding]
    too_large: Mapping[str, Sequence[bool]]
    examples: Mapping[str, Sequence[object]] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return what `from_json` reads."""
        return {
            "shares": {key: list(means) for key, means in self.shares.items()},
            "gaps": {key: list(marks) for key, marks in self.gaps.items()},
            "texts": {key: column.to_json() for key, column in self.texts.items()},
            "bins": {key: bins.to_json() for key, bins in self.bins.items()},
            "embeddings": {key: each.to_json() for key, each in self.embeddings.items()},
            "too_large": {key: list(marks) for key, marks in self.too_large.items()},
            "examples": {key: list(values) for key, values in self.examples.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Learned:
        """Read what `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: *value* does not describe them.
        """
        texts = cast(Mapping[str, Mapping[str, object]], value["texts"])
        bins = cast(Mapping[str, Mapping[str, object]], value["bins"])
        embeddings = cast(Mapping[str, Mapping[str, object]], value.get("embeddings", {}))
        too_large = cast(Mapping[str, Sequence[bool]], value.get("too_large", {}))
        return cls(
            shares=dict(cast(Mapping[str, Sequence[float]], value["shares"])),
            gaps=dict(cast(Mapping[str, Sequence[bool]], value["gaps"])),
            texts={key: TextColumn.from_json(each) for key, each in texts.items()},
            bins={key: QuantileBins.from_json(each) for key, each in bins.items()},
            embeddings={key: FittedEmbedding.from_json(each) for key, each in embeddings.items()},
            too_large=dict(too_large),
            examples=dict(cast(Mapping[str, Sequence[object]], value.get("examples", {}))),
        )


def is_gap(missing_N: NDArray[np.generic]) -> bool:
    """Whether values are missing often enough to learn from, and not always."""
    return bool(MIN_GAPS <= np.count_nonzero(missing_N) < len(missing_N))


def choose_examples(rows: int) -> list[int]:
    """Positions of the example rows among *rows* training rows, drawn without replacement."""
    generator = np.random.default_rng(0)
    chosen: list[int] = generator.choice(rows, min(rows, EXAMPLES), replace=False).tolist()
    return sorted(chosen)


def example_value(kind: FieldType, value: object) -> object:
    """*value* of a `Box` or `Discrete` field as JSON; None if it is missing."""
    if is_missing(value):
        return None
    if isinstance(kind, Discrete):
        return label_of(value)
    if isinstance(kind, Box) and kind.shape:
        numbers = cast("Sequence[object]", value)
        return [None if is_missing(each) else _rounded(each) for each in numbers]
    return _rounded(value)


def _rounded(value: object) -> float | None:
    number = float(f"{float(cast(float, value)):.{_DIGITS}g}")
    return number if np.isfinite(number) else None
