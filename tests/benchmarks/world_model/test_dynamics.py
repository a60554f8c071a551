"""Episodes are groups, and fresh ones follow those that are recorded."""

from benchmarks.world_model.catalogue import DATA_SETS
from infrastructure.agent_contract.transition import Box, Discrete


def test_episodes_are_groups():
    recording = DATA_SETS["cartpole"].record(0, 50)
    groups = {each.group for each in recording.transitions}
    assert len(recording.transitions) >= 50
    assert not groups & {each.group for each in recording.fresh}
    assert recording.spec.action == {"action": Discrete(values=("0", "1"))}
    assert recording.spec.targets["state"] == Box(shape=(4,), delta=True)


def test_a_state_follows_the_one_before():
    rows = DATA_SETS["pendulum"].record(1, 20).transitions
    assert rows[0].next_observation == rows[1].observation
    assert rows == DATA_SETS["pendulum"].record(1, 20).transitions
