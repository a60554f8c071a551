import random
from types import SimpleNamespace

import pytest
import torch

from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    Text,
    Transition,
    TransitionSpec,
)
from infrastructure.trajectories.encoding import TargetCodec
from infrastructure.world_model import WorldModel

SPEC = TransitionSpec(
    observation={"x": Box(shape=(2,)), "code": Text(buckets=128)},
    action={"kind": Discrete(values=("a", "b", "c"))},
    targets={
        "outcome": Discrete(values=("worse", "fixed")),
        "x": Box(shape=(2,), delta=True),
        "reward": Box(),
    },
    success=("outcome", "fixed"),
)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def spec():
    return SPEC


@pytest.fixture(scope="session")
def record():
    """Transitions whose outcome follows from number, word and label together, with noise."""

    def make(groups=60, rows=20, seed=0, shuffled=False):
        generator = random.Random(seed)
        made = []
        for number in range(groups * rows):
            x = (generator.gauss(0, 1), generator.gauss(5, 2))
            kind = generator.choice("abc")
            words = generator.choices(["let", "go", "if", "else", "bug"], k=4)
            score = 2 * x[0] + 2 * ("bug" in words) + 3 * (kind == "a") - 2.5
            fixed = score + generator.gauss(0, 0.5) > 0
            after = (x[0] + 0.5, x[1] + 0.3 * x[0] + generator.gauss(0, 0.1))
            made.append([f"g{number // rows}", x, kind, " ".join(words), fixed, after, score])
        if shuffled:
            targets = [row[4:] for row in made]
            generator.shuffle(targets)
            made = [row[:4] + target for row, target in zip(made, targets, strict=True)]
        return [
            Transition(
                group=group,
                observation={"x": x, "code": code},
                action={"kind": kind},
                reward=score,
                next_observation={"x": after, "outcome": "fixed" if fixed else "worse"},
            )
            for group, x, kind, code, fixed, after, score in made
        ]

    return make


@pytest.fixture(scope="session")
def fitted(record):
    """A model fitted on the planted signal."""
    torch.set_num_threads(1)
    model = WorldModel(SPEC, members=3, hidden=32)
    model.fit(record(), epochs=25, batch_size=64)
    return model


@pytest.fixture(scope="session")
def small_models(record):
    """Two small models of different weights, fitted on the planted signal."""
    torch.set_num_threads(1)
    models = [WorldModel(SPEC, members=2, hidden=8, seed=seed) for seed in (1, 2)]
    for model in models:
        model.fit(record(groups=30), epochs=1)
    return models


NOISE_SPEC = TransitionSpec(
    observation={"x": Box()},
    action={},
    targets={"y": Box(shape=(2,)), "label": Discrete(values=("no", "yes"))},
    success=("label", "yes"),
)


def _noise_transitions(rows=4000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(rows, generator=generator).tolist()
    chance = torch.rand(rows, generator=generator).tolist()
    return [
        Transition(
            group=f"g{row % 50}",
            observation={"x": 0.0},
            action={},
            next_observation={"y": (10 + 3 * noise[row], 7.0), "label": ("no", "yes")[c < 0.25]},
        )
        for row, c in enumerate(chance)
    ]


@pytest.fixture(scope="session")
def noise():
    """4000 rows of targets that no input explains: ``spec, record, transitions, codec, outcomes``.

    ``y`` is N(10, 3) and a constant, ``label`` is ``yes`` in a quarter of the rows.
    """
    transitions = _noise_transitions()
    codec = TargetCodec.fit(NOISE_SPEC, transitions)
    return SimpleNamespace(
        spec=NOISE_SPEC,
        record=_noise_transitions,
        transitions=transitions,
        codec=codec,
        outcomes=codec.outcomes(transitions),
    )
