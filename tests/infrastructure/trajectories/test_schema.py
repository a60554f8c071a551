import json
import math

import numpy as np
import pytest

from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    Text,
    Transition,
    TransitionSpec,
)
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


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"next_observation": {"x": (0, 0)}}, "'outcome' is missing"),
        ({"next_observation": {"x": (0, 0), "outcome": "odd"}}, "got 'odd'"),
        ({"next_observation": {"x": (0, math.nan), "outcome": "good"}}, "'x' must be finite"),
        ({"next_observation": {"x": (0, 1e300), "outcome": "good"}}, "'x' must be finite"),
        ({"next_observation": {"x": (0, 0, 0), "outcome": "good"}}, "'x' is missing"),
        ({"next_observation": {"x": "far", "outcome": "good"}}, "'x' is missing"),
        ({"reward": 1e300}, "'reward' must be finite and below 1e+15, got 1e+300"),
    ],
)
def test_a_target_that_cannot_be_learned_is_named(fields, problem):
    assert problem in target_problem(SPEC, _transition(1, **fields))


def test_a_good_transition_has_no_problem():
    transition = _transition(1)
    assert target_problem(SPEC, transition) is None
    assert input_problem(SPEC, transition.observation, transition.action) is None


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        TransitionSpec(
            observation={"state": Text(buckets=64)},
            action={"kind": Discrete(values=("a", "b"))},
            targets={"gain": Box()},
            improvement="gain",
            split="time",
        ),
    ],
)
def test_a_specification_is_equal_when_read_again(spec):
    assert spec_from_json(json.loads(json.dumps(spec_to_json(spec)))) == spec


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="'group' or 'time', got 'row'"):
        TransitionSpec(observation={"x": Box()}, action={}, targets={"y": Box()}, split="row")
    assert "split" not in spec_to_json(SPEC)  # as earlier releases wrote it


def test_an_unknown_field_type_is_refused():
    written = spec_to_json(SPEC)
    written["observation"] = {"x": {"type": "image"}}
    with pytest.raises(ValueError, match="'image'"):
        spec_from_json(written)


def test_a_label_may_be_an_integer_of_numpy():
    spec = TransitionSpec(
        observation={"move": Discrete(values=("0", "1"))}, action={}, targets={"reward": Box()}
    )
    assert input_problem(spec, {"move": np.int64(1)}, {}) is None
