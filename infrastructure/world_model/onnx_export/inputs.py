"""Inputs of the ONNX graph: their names, and their values for recorded rows.

Shapes: N rows, C dimensions of a `Box`, T tokens of a text field over all rows, W numbers of a
vector that embeds a text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from infrastructure.agent_contract.transition import Box, Discrete, FieldType, TransitionSpec
from infrastructure.trajectories.encoding import Learned
from infrastructure.trajectories.encoding.text_column import TextRows
from infrastructure.trajectories.schema import Values, as_vector, is_missing, labels_of
from infrastructure.world_model.fitting import FittedModel

Arrays = dict[str, NDArray[np.generic]]

MISSING = -1
"""Position of a label that is missing; that of an undeclared one is the number of labels."""


def input_fields(spec: TransitionSpec) -> dict[str, FieldType]:
    """Return the type of each input field by its key, in the order that the spec declares."""
    return {f"observation.{name}": field for name, field in spec.observation.items()} | {
        f"action.{name}": field for name, field in spec.action.items()
    }


def onnx_inputs(
    model: FittedModel, observations: Sequence[Values], actions: Sequence[Values]
) -> Arrays:
    """Convert rows to the inputs of the graph that `export_onnx` wrote.

    Returns:
        By name. A `Box`: ``[N]`` or ``[N, C]`` float64, NaN where missing. A `Discrete`: ``[N]``
        int64, the label's position. A `Text` KEY: ``KEY.tokens`` and ``KEY.rows``, ``[T]`` int64,
        number and row of each token; ``KEY.weights``, ``[T]`` float32; ``KEY.blank``, ``[N]`` bool;
        and ``KEY.vector``, ``[N, W]`` float64, if there is an embedding model.

    Raises:
        ValueError: A field is of another type than the spec declares; the message names it.
    """
    features, learned = model.encoder.encode(observations, actions), learned_of(model)
    rows, arrays = {"observation": observations, "action": actions}, Arrays()
    for key, field in input_fields(model.spec).items():
        part, _, name = key.partition(".")
        values = [row.get(name) for row in rows[part]]
        if isinstance(field, Box):
            gap = (np.nan,) * (field.shape[0] if field.shape else 1)
            vectors = [gap if is_missing(value) else as_vector(value) for value in values]
            array = np.array(vectors, dtype=np.float64)
            arrays[key] = array if field.shape else array[:, 0]
        elif isinstance(field, Discrete):
            position = {label: number for number, label in enumerate(field.values)}
            labels = zip(values, labels_of(values), strict=True)
            arrays[key] = np.array(
                [
                    MISSING if is_missing(value) else position.get(label, len(position))
                    for value, label in labels
                ],
                dtype=np.int64,
            )
        elif key not in model.encoder.constant:
            tokens = (features.linear_texts or {})[key]
            arrays[f"{key}.tokens"] = tokens.buckets.numpy()
            arrays[f"{key}.rows"] = np.repeat(np.arange(len(values)), tokens.lengths.numpy())
            arrays[f"{key}.weights"] = tokens.weights.numpy()
            texts = TextRows.of(values, characters=False)
            arrays[f"{key}.blank"] = texts.is_blank_D[texts.place_N.numpy()]
            if key in learned.embeddings:
                arrays[f"{key}.vector"] = learned.embeddings[key].model.encode(values)
    return arrays


def learned_of(model: FittedModel) -> Learned:
    """Return what the encoder of *model* has learned.

    Raises:
        KeyError: A release without vocabularies wrote the model.
    """
    return Learned.from_json(model.encoder.to_json())
