import json

import pytest
import torch

from infrastructure.agent_contract.transition import Box, Discrete, Transition, TransitionSpec
from infrastructure.trajectories.encoding.targets import TargetCodec

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
    encoded = codec.encode(codec.outcomes([_transition(n) for n in range(10)]))
    mean, _ = codec.standardisers["x"].invert(encoded["x"], torch.ones(10, 1))
    assert mean[:, 0].tolist() == pytest.approx([n**2 for n in range(10)], abs=1e-4)
    assert encoded["reward"].mean().abs() < 1e-6
    assert encoded["terminated"].tolist() == [0] * 9 + [1]
    assert encoded["outcome"].tolist() == [0, 1] * 5


def test_constant_targets_are_not_learned():
    codec = TargetCodec.fit(SPEC, [_transition(0) for _ in range(10)])
    assert codec.heads == {}
    assert codec.constant == ("x", "reward", "terminated", "outcome")


def test_saved_and_read_it_is_equal(codec):
    assert TargetCodec.from_json(SPEC, json.loads(json.dumps(codec.to_json()))) == codec


def test_outcomes_are_all_targets_in_recorded_units(codec):
    outcomes = codec.outcomes([_transition(n) for n in (3, 4)])
    assert outcomes["x"].tolist() == [[9.0, 0.0], [16.0, 0.0]]
    assert outcomes["reward"].tolist() == [[6.0], [8.0]]
    assert outcomes["terminated"].tolist() == [0, 0]
    assert outcomes["outcome"].tolist() == [1, 0]


def test_the_success_label_counts_only_if_it_varied(codec):
    assert codec.success_label == ("outcome", 0)
    assert TargetCodec.fit(SPEC, [_transition(0) for _ in range(10)]).success_label is None


def test_labels_of_a_box_are_refused(codec):
    with pytest.raises(ValueError, match="'reward'"):
        codec.labels("reward")
