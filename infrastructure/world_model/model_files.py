"""A fitted model on disk: ``model.json``, and the file of weights whose name and hash it holds.

``model.json`` is the commit point: it is replaced atomically after the weights are on the disk,
so that a reader finds the old model or the new one, never a mixture. Nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from torch import Tensor
from torch.nn import Module

from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    FieldType,
    FieldValue,
    TransitionSpec,
)
from infrastructure.files import (
    JsonFileError,
    hash_bytes,
    hash_file,
    read_json,
    write_atomically,
)
from infrastructure.training.tensor_files import TensorFileError, read_tensors, tensor_bytes
from infrastructure.trajectories.encoding import FeatureEncoder, TargetCodec
from infrastructure.trajectories.schema import spec_from_json, spec_to_json
from infrastructure.world_model.distributions import BlendWeights, BoxDistribution, Calibration
from infrastructure.world_model.distributions.confidence import confidence
from infrastructure.world_model.fitting import FittedModel
from infrastructure.world_model.networks import (
    EnsembleNetwork,
    LinearNetwork,
    NetworkShape,
    without_spare_rows,
)

FORMATS = (2, 3, 4, 5)
"""Format 3 has fewer table rows than its texts have buckets; releases before it read only 2. Format
4 has vocabularies of texts or marks of missing values; releases before it read only 2 and 3. In
format 5 the linear model crosses observation and action; releases before it read 2 to 4."""

_CROSSED_FORMAT = 5
INDEX = "model.json"
"""File of a saved model that names the others."""
_MOST_INDEX_BYTES = 1 << 28

BuildNetwork = Callable[[NetworkShape], Module]


class ModelFileError(ValueError):
    """A saved model cannot be used."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(
            f"cannot load the world model from {path}: {problem}. Restore {path.parent} from a "
            f"copy, or remove it: the next training writes a new one"
        )
        self.path = path


def save_model(
    folder: Path, model: FittedModel, extra: Mapping[str, object], *, half: bool = False
) -> None:
    """Replace the model in *folder* atomically and durably.

    Rows of text tables that stand for no token are left out.

    Args:
        folder: Folder of the model, created if missing.
        extra: JSON to save with the model (training history, metrics).
        half: Whether to store the weights in FP16; they are float32 again when loaded.

    Raises:
        ValueError: *half* is set, and a weight is beyond the range of FP16.
        OSError: Writing failed; the previous model stays in use.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shape = NetworkShape.of(model.encoder, model.codec, spare_rows=False)
    is_library_network = type(model.ensemble) is EnsembleNetwork
    ensemble = model.ensemble.state_dict()
    states = {
        "ensemble": without_spare_rows(ensemble, shape) if is_library_network else ensemble,
        "linear": model.linear.state_dict(),
    }
    if half:
        states = {name: _halved(state) for name, state in states.items()}
    content, hashed = tensor_bytes(states)
    weights = folder / f"weights-{hashed.sha256[:16]}.pt"
    description = {
        "spec": spec_to_json(model.spec),
        "encoder": model.encoder.to_json(),
        "codec": model.codec.to_json(),
        "calibration": model.calibration.to_json(),
        "ensemble_weight": model.ensemble_weight,
        "blend": {name: list(weights) for name, weights in model.weights.items()},
        "caution": model.policy_shift_warning,
        "network": model.ensemble.sizes if is_library_network else None,
        "crossed": bool(model.linear.shape.crossed),
        "weights": {"file": weights.name, "sha256": hashed.sha256},
        "extra": dict(extra),
    }
    index = {
        "format": _CROSSED_FORMAT if model.linear.shape.crossed else model.encoder.format,
        "sha256": _digest(description),
        "model": description,
    }
    previous = _current_weights(folder)
    write_atomically(weights, content)
    write_atomically(folder / INDEX, json.dumps(index).encode())
    for path in (*folder.glob("weights-*.pt"), *folder.glob(".*")):  # .*: of a killed writer
        if path.name not in (weights.name, previous):  # a reader may still open the previous one
            path.unlink(missing_ok=True)


def load_model(
    folder: Path, build_network: BuildNetwork = EnsembleNetwork
) -> tuple[FittedModel, dict[str, object]]:
    """Load the model and the *extra* that `save_model` wrote.

    Args:
        folder: Folder given to `save_model`.
        build_network: Function that builds the network whose weights were saved. Not called for
            an `EnsembleNetwork`, whose sizes are saved.

    Raises:
        FileNotFoundError: There is no model in *folder*.
        ModelFileError: A file is damaged, missing or of another format; the message names it.
    """
    description = _read_description(folder / INDEX)
    try:
        weights = cast(Mapping[str, str], description["weights"])
        states = _read_weights(folder / Path(weights["file"]).name, weights["sha256"])
        model = _rebuild(description, states, build_network)
        _predict_once(model)
        extra = dict(description["extra"])
    except ModelFileError:
        raise
    except (
        LookupError,
        TypeError,
        AttributeError,
        ValueError,
        RuntimeError,
        ArithmeticError,
    ) as error:
        problem = f"it does not describe a model that this version can load ({error})"
        raise ModelFileError(folder / INDEX, problem) from error
    return model, extra


def load_spec(folder: Path) -> TransitionSpec:
    """Load the specification of a saved model without its networks.

    Raises:
        FileNotFoundError: There is no model in *folder*.
        ModelFileError: ``model.json`` is damaged or of another format.
    """
    description = _read_description(folder / INDEX)
    try:
        return spec_from_json(description["spec"])
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ModelFileError(folder / INDEX, f"its specification is damaged ({error})") from error


def _halved(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    halved = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in state.items()
    }
    for name, tensor in halved.items():
        if tensor.is_floating_point() and bool((tensor.isinf() & state[name].isfinite()).any()):
            raise ValueError(
                f"weights of {name} are too large for FP16 (up to "
                f"{float(state[name].abs().max()):.3g}, at most 65504): save with half=False"
            )
    return halved


def _digest(description: object) -> str:
    return hash_bytes(json.dumps(description, sort_keys=True).encode()).sha256


def _read_index(path: Path) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", read_json(path, limit=_MOST_INDEX_BYTES, allow_nan=True))


def _read_description(path: Path) -> Mapping[str, Mapping[str, object]]:
    try:
        with _file_in_place(path):
            index = _read_index(path)
        file_format, digest, description = index["format"], index["sha256"], index["model"]
    except ModelFileError:
        raise
    except JsonFileError as error:
        raise ModelFileError(path, f"it is truncated or altered ({error.problem})") from None
    except (KeyError, TypeError) as error:
        raise ModelFileError(path, f"it is truncated or altered ({error})") from error
    if file_format not in FORMATS:
        expected = " or ".join(map(str, FORMATS))
        raise ModelFileError(path, f"its format is {file_format!r}, expected {expected}")
    if _digest(description) != digest:
        raise ModelFileError(path, "its hash differs from its content")
    return cast("Mapping[str, Mapping[str, object]]", description)


def _rebuild(
    description: Mapping[str, Mapping[str, object]],
    states: Mapping[str, Mapping[str, Tensor]],
    build_network: BuildNetwork,
) -> FittedModel:
    spec = spec_from_json(description["spec"])
    encoder = FeatureEncoder.from_json(spec, description["encoder"])
    codec = TargetCodec.from_json(spec, description["codec"])
    crossed = bool(description.get("crossed", False))
    shape = NetworkShape.of(encoder, codec, spare_rows=False, crossed=crossed)
    linear = LinearNetwork(shape)
    if description["network"] is not None:
        ensemble: Module = EnsembleNetwork(shape, **cast("dict[str, int]", description["network"]))
    else:
        ensemble = build_network(NetworkShape.of(encoder, codec))
    for network, name in ((ensemble, "ensemble"), (linear, "linear")):
        network.load_state_dict(_in_float32(states[name]), assign=True)  # the mapped tensors
    return FittedModel(
        encoder=encoder,
        codec=codec,
        ensemble=ensemble.eval(),
        linear=linear.eval(),
        weights=_blend_weights(description, codec),
        calibration=Calibration.from_json(description["calibration"]),
        policy_shift_warning=str(description["caution"]),
    )


def _in_float32(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: each.float() if each.is_floating_point() else each for name, each in state.items()
    }


def _predict_once(model: FittedModel) -> None:
    """Predict a row of plain values and an empty one, so that what cannot be computed fails now.

    Raises:
        ValueError: A target has another number of columns than the spec declares, or a prediction
            is not finite. What the computation raises passes through.
    """
    plain = [_plain_values(fields) for fields in (model.spec.observation, model.spec.action)]
    observations, actions = [plain[0], {}], [plain[1], {}]
    predicted = model.predict(model.encoder.encode(observations, actions))
    confidence_N = confidence(predicted, model.codec)
    for name, target in model.spec.targets.items():
        distribution = predicted[name]
        if isinstance(distribution, BoxDistribution):
            width = target.shape[0] if isinstance(target, Box) and target.shape else 1
            found = distribution.half_width_90().shape[1]
            numbers = [distribution.mean, distribution.variance, distribution.half_width_90()]
        else:
            width = len(model.codec.labels(name))
            found = distribution.probabilities.shape[1]
            numbers = [distribution.probabilities]
        if found != width:
            raise ValueError(f"target {name!r} has {found} columns instead of {width}")
        if not all(bool(each.isfinite().all()) for each in (*numbers, confidence_N)):
            raise ValueError(f"what it predicts of {name!r} is not finite: its weights are damaged")


def _plain_values(fields: Mapping[str, FieldType]) -> dict[str, FieldValue]:
    values = dict[str, FieldValue]()
    for name, field in fields.items():
        if isinstance(field, Box):
            values[name] = (0.0,) * field.shape[0] if field.shape else 0.0
        else:
            values[name] = field.values[0] if isinstance(field, Discrete) else "a word"
    return values


def _blend_weights(description: Mapping[str, Any], codec: TargetCodec) -> BlendWeights:
    """Weights of each target; earlier releases have the ensemble's alone, for all targets."""
    if "blend" not in description:
        share = float(description["ensemble_weight"])
        return dict.fromkeys(codec.heads, (share, 1.0 - share))
    weights = {name: (float(a), float(b)) for name, (a, b) in description["blend"].items()}
    for name, pair in weights.items():
        if not (min(pair) >= 0.0 and sum(pair) <= 1.0 + 1e-9):
            raise ValueError(
                f"the blend's weights of {name} must be at least 0 and add up to at most 1, got "
                f"{pair}"
            )
    return weights


@contextmanager
def _file_in_place(path: Path) -> Iterator[None]:
    """Read the file *path* in the block.

    Raises:
        ModelFileError: It is a folder, or its folder is a file.
    """
    if path.is_dir():
        raise ModelFileError(path, "it is a folder, not a file")
    try:
        yield
    except NotADirectoryError:
        file = next(parent for parent in path.parents if parent.is_file())
        raise ModelFileError(path, f"{file} is a file, not a folder: move it away") from None


def _read_weights(path: Path, digest: str) -> Mapping[str, Mapping[str, Tensor]]:
    try:
        with _file_in_place(path):
            hashed = hash_file(path)
    except FileNotFoundError:
        raise ModelFileError(path, "the file is missing") from None
    if hashed.sha256 != digest:
        raise ModelFileError(path, "its hash differs from the one in model.json")
    try:
        return cast("Mapping[str, Mapping[str, Tensor]]", read_tensors(path, mapped=True))
    except TensorFileError as error:
        raise ModelFileError(path, f"torch cannot read it ({error})") from None


def _current_weights(folder: Path) -> str | None:
    try:
        name = _read_index(folder / INDEX)["model"]["weights"]["file"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a damaged index is replaced as well
    return str(name)
