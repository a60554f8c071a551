import math
import random

import pytest

from infrastructure.agent_contract.transition import Box, Discrete, Transition, TransitionSpec
from infrastructure.world_model.linear_fit import fit_linear
from infrastructure.world_model.outlook import outlook_of
from infrastructure.world_model.training_data import prepare

SPEC = TransitionSpec(
    observation={"x": Box(shape=(2,))},
    action={},
    targets={"y": Box(), "label": Discrete(values=("no", "yes"))},
    success=("label", "yes"),
)


def test_it_finds_the_regression_that_made_the_data():
    generator = random.Random(1)
    transitions = []
    for row in range(4000):
        x = (generator.gauss(0, 1), generator.gauss(0, 1))
        chance = 1 / (1 + math.exp(-(2 * x[0] - x[1] - 1)))
        label = "yes" if generator.random() < chance else "no"
        y = 3 * x[0] + 2 + generator.gauss(0, 0.5)
        transitions.append(
            Transition(
                group=f"g{row // 40}",
                observation={"x": x},
                action={},
                next_observation={"y": y, "label": label},
            )
        )
    data = prepare(SPEC, transitions)
    network = fit_linear(data)
    features = data.encoder.encode([{"x": (1.0, 0.0)}, {"x": (-1.0, 1.0)}], [{}, {}])
    outlook = outlook_of(network(features.inputs()), data.codec, 2)
    assert outlook["y"].mean[:, 0].tolist() == pytest.approx([5.0, -1.0], abs=0.1)
    assert outlook["y"].variance[:, 0].tolist() == pytest.approx([0.25, 0.25], abs=0.05)
    expected = [1 / (1 + math.exp(-1)), 1 / (1 + math.exp(4))]
    assert outlook["label"].probabilities[:, 1].tolist() == pytest.approx(expected, abs=0.05)
