import json
import math

import pytest
import torch

from infrastructure.agent_contract.transition import Box, Discrete, Transition, TransitionSpec
from infrastructure.trajectories.encoding.targets import TargetCodec
from infrastructure.trajectories.schema import (
    input_problem,
    spec_from_json,
    spec_to_json,
    target_problem,
)

SPEC = TransitionSpec(
    observation={"x": Box(shape=(2,))},
    action={},
    targets={
        "x": Box(shape=(2,), delta=True),
        "reward": Box(),
        "terminated": Discrete(values=("false", "true")),
        "outcome": Discrete(values=("good", "bad", "never")),
    },
    success=("outcome", "good"),
)


def _transition(n, **fields):
    return Transition(
        **{
            "group": "g",
            "observation": {"x": (float(n), 5.0)},
            "action": {},
            "reward": 2.0 * n,
            "next_observation": {"x": (n + n**2, 5.0), "outcome": ("good", "bad")[n % 2]},
            "terminated": n == 9,
        }
        | fields
    )


@pytest.fixture
def codec():
    return TargetCodec.fit(SPEC, [_transition(n) for n in range(10)])


def test_targets_are_changes_labels_and_standardised_numbers(codec):
    assert codec.heads == {"x": 1, "reward": 1, "terminated": 2, "outcome": 3}
    encoded = codec.encode([_transition(n) for n in range(10)])
    mean, _ = codec.standardisers["x"].invert(encoded["x"], torch.ones(10, 1))
    assert mean[:, 0].tolist() == pytest.approx([n**2 for n in range(10)], abs=1e-4)
    assert encoded["reward"].mean().abs() < 1e-6
    assert encoded["terminated"].tolist() == [0] * 9 + [1]
    assert encoded["outcome"].tolist() == [0, 1] * 5


def test_what_never_varied_is_not_learned():
    codec = TargetCodec.fit(SPEC, [_transition(0) for _ in range(10)])
    assert codec.heads == {}
    assert codec.constant == ("x", "reward", "terminated", "outcome")


def test_saved_and_read_it_is_equal(codec):
    spec = spec_from_json(json.loads(json.dumps(spec_to_json(SPEC))))
    assert spec == SPEC
    assert TargetCodec.from_json(spec, json.loads(json.dumps(codec.to_json()))) == codec


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"next_observation": {"x": (0, 0)}}, "'outcome' is missing"),
        ({"next_observation": {"x": (0, 0), "outcome": "odd"}}, "undeclared label 'odd'"),
        ({"next_observation": {"x": (0, math.nan), "outcome": "good"}}, "'x' is not a usable"),
        ({"next_observation": {"x": (0, 1e300), "outcome": "good"}}, "'x' is not a usable"),
        ({"next_observation": {"x": (0, 0, 0), "outcome": "good"}}, "'x' is missing"),
        ({"next_observation": {"x": "far", "outcome": "good"}}, "'x' is missing"),
        ({"reward": 1e300}, "'reward' is not a usable"),
    ],
)
def test_a_target_that_cannot_be_learned_is_named(fields, problem):
    assert problem in target_problem(SPEC, _transition(1, **fields))


def test_a_good_transition_has_no_problem():
    transition = _transition(1)
    assert target_problem(SPEC, transition) is None
    assert input_problem(SPEC, transition.observation, transition.action) is None
