from __future__ import annotations

import math

import pytest

from infrastructure.agent_contract import Transition
from infrastructure.agent_contract.transition import Box, Discrete, Text, TransitionSpec

OUTCOME = Discrete(values=("worse", "better"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"targets": {"next": Text()}}, "is Text"),
        ({"targets": {"velocity": Box(delta=True)}}, "declare observation 'velocity'"),
        ({"targets": {"x": Box(shape=(2,), delta=True)}}, "shape"),
        ({"success": ("outcome", "great")}, "label"),
        ({"improvement": "outcome"}, "scalar Box"),
        ({"targets": {}}, "at least one"),
    ],
)
def test_a_wrong_spec_is_named(change, words):
    spec = {"observation": {"x": Box()}, "action": {}, "targets": {"outcome": OUTCOME}}
    with pytest.raises(ValueError, match=words):
        TransitionSpec(**{**spec, **change})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"group": ""}, "needs a group"),
        ({"reward": math.nan}, "finite"),
        ({"propensity": 0.0}, "propensity"),
        ({"propensity": 1.5}, "propensity"),
    ],
)
def test_a_wrong_transition_is_named(change, words):
    with pytest.raises(ValueError, match=words):
        Transition(**{"group": "g", "observation": {}, "action": {}, **change})
