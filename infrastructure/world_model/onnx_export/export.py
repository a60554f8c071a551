"""Writes a fitted model as an ONNX graph, and the description of its inputs and outputs."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch

from infrastructure.agent_contract.transition import Box, Discrete
from infrastructure.files import write_atomically
from infrastructure.trajectories.schema import spec_to_json
from infrastructure.world_model.fitting import FittedModel
from infrastructure.world_model.networks import EnsembleNetwork
from infrastructure.world_model.onnx_export.graph import PredictionGraph, output_names
from infrastructure.world_model.onnx_export.inputs import (
    MISSING,
    input_fields,
    learned_of,
    onnx_inputs,
)

OPSET = 18
INSTALL = "pip install 'genesis-fp16[onnx]'"
_EXAMPLE_ROWS = 3  # torch would take a single row for a constant


TEXT_RULE = (
    "Normalise to NFC, fold case. Split with the regular expression \\w+|[^\\w\\s] (scripts "
    "without spaces are cut into runs of 1, 2 and 3 characters). A word is the CRC-32 of its UTF-8 "
    "bytes with the lowest bit cleared, a mark of punctuation that with the lowest bit set. Each "
    "adjacent pair of a and b is (a * 0x9E3779B1 + b) modulo 2**32 with the lowest bit set. If "
    "'features' has numbers of 2**32 or more: each run of 3, 4 and 5 characters of <word>, hashed "
    "as a word, plus 2**32. The number of a token is the position of its hash in 'features'; "
    "others are dropped. A token that occurs n times counts once, with the weight (1 + ln n) * "
    "idf; the weights of the tokens below 'words', and of the others, are divided by the root of "
    "the sum of their squares. A text without a known word becomes the mean text, unless it is "
    "blank and blank_has_a_meaning: all tokens with the weights 'mean'."
)


class OnnxExportError(ValueError):
    """A model cannot be exported; the message says why, and the remedy."""


def export_onnx(model: FittedModel, file: Path) -> Path:
    """Write the graph of *model* to *file*, and its description beside it.

    Args:
        file: Path of the graph; replaced if it exists.

    Returns:
        Path of the description: *file* with the suffix ``.json``.

    Raises:
        OnnxExportError: The libraries of the extra ``onnx`` are missing, the network is the agent's
            own, or a release wrote the model that had no vocabularies yet.
        OSError: Writing failed.
    """
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise OnnxExportError(f"{' and '.join(missing)} must be installed: {INSTALL}")
    if type(model.ensemble) is not EnsembleNetwork:
        raise OnnxExportError(
            "its network is the agent's own, and only the library's networks can be exported"
        )
    try:
        learned_of(model)
    except KeyError:
        raise OnnxExportError(
            "an earlier release wrote the model: train it again with this one"
        ) from None
    example = onnx_inputs(model, *_example_rows(model))
    names = tuple(example)
    if not names:
        raise OnnxExportError("none of its inputs varied in the training data")
    rows, sizes = torch.export.Dim("rows"), dict[str, object]()
    for name in names:
        key, _, part = name.rpartition(".")
        if part == "tokens" and f"{key}.weights" in names:
            tokens = torch.export.Dim(f"tokens_{len(sizes)}")
            sizes |= {f"{key}.{each}": {0: tokens} for each in ("tokens", "rows", "weights")}
        sizes.setdefault(name, {0: rows})
    with _quiet():
        program = torch.onnx.export(
            PredictionGraph(model, names).eval(),
            tuple(torch.from_numpy(array) for array in example.values()),
            input_names=names,
            output_names=output_names(model),
            dynamic_shapes=(tuple(sizes[name] for name in names),),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    if program is None:  # torch's type allows it
        raise OnnxExportError("torch returned no graph")
    graph = program.model_proto.graph
    fixed = [each.name for each in graph.input if not each.type.tensor_type.shape.dim[0].dim_param]
    if fixed:  # torch tries other ways to trace, without a word
        raise OnnxExportError(f"torch has fixed the number of rows of {', '.join(fixed)}")
    content = program.model_proto.SerializeToString()
    description = file.with_suffix(f"{file.suffix}.json")
    write_atomically(file, content)
    write_atomically(description, json.dumps(describe(model, names), indent=1).encode())
    return description


def _example_rows(model: FittedModel) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Rows to trace with; texts have tokens, so that no size is 0."""
    parts: dict[str, dict[str, object]] = {"observation": {}, "action": {}}
    for key, field in input_fields(model.spec).items():
        part, _, name = key.partition(".")
        if isinstance(field, Box):
            parts[part][name] = (0.0,) * field.shape[0] if field.shape else 0.0
        elif isinstance(field, Discrete):
            parts[part][name] = field.values[0]
        else:
            parts[part][name] = "a word, and another"  # unknown ones become the mean text
    return [parts["observation"]] * _EXAMPLE_ROWS, [parts["action"]] * _EXAMPLE_ROWS


def describe(model: FittedModel, names: tuple[str, ...]) -> dict[str, object]:
    """Describe inputs and outputs, as JSON; what a `Text` needs lies beside its name."""
    inputs, learned = dict[str, object](), learned_of(model)
    for key, field in input_fields(model.spec).items():
        if isinstance(field, Box):
            size = [field.shape[0]] if field.shape else []
            inputs[key] = {"type": "float64", "shape": ["rows", *size], "missing": "NaN"}
        elif isinstance(field, Discrete):
            inputs[key] = {
                "type": "int64",
                "shape": ["rows"],
                "labels": list(field.values),
                "missing": MISSING,
                "undeclared": len(field.values),
            }
        elif key in learned.texts and f"{key}.tokens" in names:
            vocabulary, embedding = learned.texts[key].vocabulary, learned.embeddings.get(key)
            inputs[key] = {
                "type": "text",
                "tokens": {"type": "int64", "shape": ["tokens"]},
                "rows": {"type": "int64", "shape": ["tokens"]},
                "weights": {"type": "float32", "shape": ["tokens"]},
                "blank": {"type": "bool", "shape": ["rows"]},
                "blank_has_a_meaning": key in learned.gaps,
                "embedding": None if embedding is None else embedding.to_json(),
                "words": vocabulary.words,
                "features": vocabulary.features.tolist(),
                "idf": vocabulary.idf.tolist(),
                "mean": vocabulary.mean.tolist(),
            }
    return {
        "format": 1,
        "spec": spec_to_json(model.spec),
        "inputs": inputs,
        "outputs": output_names(model),
        "text_rule": TEXT_RULE,
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's own progress and warnings off the terminal."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
