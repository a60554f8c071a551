"""The graph that is exported computes what the model predicts, for any spec."""

import json
import math
import random
import re
import warnings
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infrastructure.agent_contract import Transition
from infrastructure.agent_contract.transition import Box, Discrete, Text, TransitionSpec
from infrastructure.world_model import WorldModel
from infrastructure.world_model.fitting import fit_candidates, prepare_training_data
from infrastructure.world_model.networks import EnsembleNetwork, NetworkShape, build_seeded
from infrastructure.world_model.onnx_export import OnnxExportError, export_onnx, onnx_inputs
from infrastructure.world_model.onnx_export.export import describe
from infrastructure.world_model.onnx_export.graph import PredictionGraph, output_names

WORDS = ["alpha", "beta", "gamma,", "Delta!", "épsilon", "zeta"]
FIELDS = {
    "number": Box(),
    "vector": Box(shape=(2,)),
    "label": Discrete(values=("a", "b", "c")),
    "text": Text(),
}
TARGETS = {
    "done": Discrete(values=("no", "yes")),
    "number": Box(delta=True),
    "vector": Box(shape=(2,), delta=True),
    "level": Discrete(values=("low", "mid", "high")),
    "reward": Box(),
}


def draw(field, rng, *, odd):
    """A value of *field*; with *odd* also what is missing, far or unknown."""
    kind = rng.random() if odd else 1.0
    if kind < 0.2:
        return None
    if isinstance(field, Box):
        far = 1e6 if kind < 0.3 else 1.0
        numbers = [far * rng.gauss(0, 1) * rng.expovariate(1) ** 3 for _ in range(2)]
        return tuple(numbers) if field.shape else numbers[0]
    if isinstance(field, Discrete):
        return "unheard" if kind < 0.3 else rng.choice(field.values)
    return "nothing known" if kind < 0.3 else " ".join(rng.choices(WORDS, k=rng.randint(0, 5)))


def recorded(spec, rows, rng, *, odd=True):
    """Transitions whose outcome depends a little on what is observed."""
    made = []
    for number in range(rows):
        observation = {name: draw(field, rng, odd=odd) for name, field in spec.observation.items()}
        action = {name: draw(field, rng, odd=odd) for name, field in spec.action.items()}
        lean = rng.gauss(0, 1) + (observation.get("number") or 0.0)
        after = {}
        for name, field in spec.targets.items():
            if isinstance(field, Discrete):
                after[name] = field.values[-1 if lean > 0 else 0]
            elif name != "reward":
                before = observation.get(name, 0.0)
                if before is None:
                    observation[name] = before = (0.0, 0.0) if field.shape else 0.0
                after[name] = tuple(b + lean for b in before) if field.shape else before + lean
        made.append(
            Transition(
                group=str(number // 3),
                observation=observation,
                action=action,
                next_observation=after,
                reward=lean,
            )
        )
    return made


def fitted(spec, transitions):
    """A model whose ensemble has random weights; all else is fitted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = prepare_training_data(spec, transitions)
    shape = NetworkShape.of(data.encoder, data.codec)
    network = build_seeded(lambda shape: EnsembleNetwork(shape, members=2, hidden=8), shape, 0)
    return WorldModel.from_fitted(fit_candidates(data, network)["blend"], {})


def check(outputs, world_model, observations, actions):
    """Compare outputs with `predict_batch`, within 1e-5 of each value."""
    predictions, spec = world_model.predict_batch(observations, actions), world_model.spec
    unknown_ND = world_model.fitted_model.encoder.encode(observations, actions).unknown
    is_incomplete = [False] * len(predictions) if unknown_ND is None else unknown_ND.any(1).tolist()
    assert outputs["incomplete"].tolist() == is_incomplete
    for row, prediction in enumerate(predictions):
        if is_incomplete[row]:
            continue  # the graph takes the mean there
        expected = {"confidence": prediction.confidence}
        if spec.success is not None:
            expected["success_probability"] = prediction.success_probability
        if prediction.expected_improvement is not None:
            expected["expected_improvement"] = prediction.expected_improvement
        for name, chances in prediction.probabilities.items():
            expected[f"{name}.probabilities"] = list(chances.values())
        for name, deviations in prediction.deviations.items():
            expected[f"{name}.deviation"] = deviations
            interval = prediction.intervals[name]
            expected[f"{name}.half_width"] = np.subtract(interval.high, interval.low) / 2
            if name in prediction.next_state:
                expected[name] = np.atleast_1d(prediction.next_state[name])
        for name, value in expected.items():
            got, wanted = np.array(outputs[name][row]), np.array(value)
            scale = np.maximum(1.0, np.abs(np.nan_to_num(wanted)))
            error = np.abs(np.nan_to_num(got) - np.nan_to_num(wanted)) / scale
            if name.endswith("half_width"):  # ends may be NaN, and are differences of large numbers
                error = np.where(np.isnan(wanted), 0.0, error * 1e-1)
            assert (error < 1e-5).all(), (name, got, wanted)


@st.composite
def specs(draw_):
    observed = draw_(st.sets(st.sampled_from(sorted(FIELDS)), min_size=1))
    acted = draw_(st.sets(st.sampled_from(["label", "text", "vector"])))
    targets = {
        name
        for name in draw_(st.sets(st.sampled_from(sorted(TARGETS)), min_size=1))
        if name not in ("number", "vector") or name in observed
    } or {"done"}
    return TransitionSpec(
        observation={name: FIELDS[name] for name in sorted(observed)},
        action={name: FIELDS[name] for name in sorted(acted)},
        targets={name: TARGETS[name] for name in sorted(targets)},
        success=("done", "yes") if "done" in targets else None,
    )


@pytest.mark.process
@settings(max_examples=15, deadline=None)
@given(spec=specs(), seed=st.integers(0, 2**16), odd=st.booleans())
def test_the_graph_computes_what_the_model_predicts(spec, seed, odd):
    rng = random.Random(seed)
    world_model = fitted(spec, recorded(spec, 240, rng, odd=odd))
    rows = recorded(spec, 7, rng)
    observations, actions = [row.observation for row in rows], [row.action for row in rows]
    arrays = onnx_inputs(world_model.fitted_model, observations, actions)
    graph = PredictionGraph(world_model.fitted_model, tuple(arrays))
    with torch.no_grad():
        tensors = graph(*map(torch.from_numpy, arrays.values()))
    names = output_names(world_model.fitted_model)
    outputs = dict(zip(names, (each.numpy() for each in tensors), strict=True))
    check(outputs, world_model, observations, actions)


def test_the_description_suffices_to_encode_texts():
    spec = TransitionSpec(observation={"text": Text()}, action={}, targets={"reward": Box()})
    rng = random.Random(1)
    model = fitted(spec, recorded(spec, 240, rng)).fitted_model
    names = tuple(onnx_inputs(model, [{"text": "alpha"}], [{}]))
    field = json.loads(json.dumps(describe(model, names)))["inputs"]["observation.text"]
    place = {feature: number for number, feature in enumerate(field["features"])}

    def hashed(token):
        mark = not (token[0].isalnum() or token[0] == "_")
        return zlib.crc32(token.encode()) & ~1 | mark

    def encode(text):
        tokens = re.findall(r"\w+|[^\w\s]", text.lower())
        words = [hashed(token) for token in tokens]
        found = words + [(a * 0x9E3779B1 + b) % 2**32 | 1 for a, b in pairwise(words)]
        for token in tokens:
            if token[0].isalnum():
                piece = f"<{token}>"
                for size in (3, 4, 5):
                    runs = [piece[at : at + size] for at in range(len(piece) - size + 1)]
                    found += [hashed(run) + 2**32 for run in runs]
        counts = {}
        for feature in found:
            if feature in place:
                counts[place[feature]] = counts.get(place[feature], 0) + 1
        weights = {n: (1 + math.log(count)) * field["idf"][n] for n, count in counts.items()}
        for part in (range(field["words"]), range(field["words"], len(place))):
            norm = math.sqrt(sum(weights[n] ** 2 for n in part if n in weights))
            weights |= {n: weights[n] / norm for n in part if n in weights}
        return weights

    for text in ("alpha beta, beta!", "zeta Delta! gamma, unknown"):
        arrays = onnx_inputs(model, [{"text": text}], [{}])
        ours = dict(
            zip(
                arrays["observation.text.tokens"].tolist(),
                arrays["observation.text.weights"].tolist(),
                strict=True,
            )
        )
        assert ours == pytest.approx(encode(text), abs=1e-6)


def test_a_network_of_the_agents_own_is_refused(tmp_path: Path):
    spec = TransitionSpec(observation={"number": Box()}, action={}, targets={"reward": Box()})
    model = fitted(spec, recorded(spec, 240, random.Random(2))).fitted_model
    model.ensemble.__class__ = type("Own", (EnsembleNetwork,), {})
    with pytest.raises(OnnxExportError, match="agent's own"):
        export_onnx(model, tmp_path / "model.onnx")
