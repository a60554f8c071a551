import random

import pytest
import torch

from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    Text,
    Transition,
    TransitionSpec,
)
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


@pytest.fixture(autouse=True)
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
    model.fit(record(), epochs=40, batch_size=64)
    return model
