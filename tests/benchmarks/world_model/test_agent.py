"""The agent's file holds the fields of the recording."""

import pytest

from benchmarks.world_model.agent import define
from infrastructure.agent_contract.transition import Box, Discrete, Text, TransitionSpec
from infrastructure.trajectories.record_source import read_definition


@pytest.mark.parametrize(
    "spec",
    [
        TransitionSpec(
            observation={"a.b": Box(), 'quoted "name"': Text(), "state": Box(shape=(3,))},
            action={"way": Discrete(values=("left", 'r"i')), "force": Box(shape=(1,))},
            targets={"state": Box(shape=(3,), delta=True), "reward": Box()},
        ),
        TransitionSpec(observation={"x": Box()}, action={}, targets={"y": Box()}),
    ],
)
def test_definition_declares_the_same_fields(tmp_path, spec):
    path = tmp_path / "measured.toml"
    path.write_text(define(spec))
    assert read_definition(path).transition_spec() == spec
