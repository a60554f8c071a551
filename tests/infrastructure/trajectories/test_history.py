import math

import pytest

from infrastructure.agent_contract.transition import Box, Discrete, Transition, TransitionSpec
from infrastructure.trajectories.history import sequences, stack_history, with_history
from infrastructure.trajectories.schema import spec_from_json, spec_to_json

SPEC = TransitionSpec(
    observation={"x": Box()},
    action={"go": Discrete(values=("no", "yes"))},
    targets={"x": Box(delta=True)},
    history=3,
)


def _row(group, x, after, go="yes", *, terminated=False):
    return Transition(
        group=group,
        observation={"x": x},
        action={"go": go},
        next_observation={"x": after},
        terminated=terminated,
    )


def test_a_history_declares_fields_once():
    names = ["x", "x[-1]", "go[-1]", "x[-2]", "go[-2]"]
    assert list(SPEC.observation) == names
    again = spec_from_json(spec_to_json(SPEC))
    assert again == SPEC
    assert list(again.observation) == names


def test_a_spec_without_sequences_is_saved_as_before():
    plain = TransitionSpec(observation={"x": Box()}, action={}, targets={"y": Box()})
    assert {"history", "rollout_steps"}.isdisjoint(spec_to_json(plain))


@pytest.mark.parametrize(
    "wrong",
    [
        {"history": 0},
        {"history": 1_000_000},
        {"history": True},
        {"rollout_steps": -1},
        {"rollout_steps": 1.5},
        {"rollout_steps": 10_001},
    ],
)
def test_a_spec_refuses_numbers_out_of_range(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TransitionSpec(observation={"x": Box()}, action={}, targets={"y": Box()}, **wrong)


def test_sequences_follow_each_group():
    a, b, c = _row("g", 0.0, 1.0), _row("h", 5.0, 6.0), _row("g", 1.0, 2.0, terminated=True)
    d, e = _row("g", 2.0, 3.0), _row("h", 7.0, 8.0)
    assert sequences([a, b, c, d, e], ["x"]) == [[a, c], [b], [d], [e]]


def test_a_missing_value_continues_only_a_missing_one():
    a, b, c = _row("g", 0.0, None), _row("g", math.nan, 2.0), _row("g", None, 3.0)
    d = Transition(group="g", observation={}, action={}, next_observation={"x": 4.0})
    assert sequences([a, b], ["x"]) == [[a, b]]
    assert sequences([a, d], ["x"]) == [[a, d]]
    assert sequences([b, c], ["x"]) == [[b], [c]]
    assert [row.observation["x[-1]"] for row in with_history(SPEC, [a, d])] == [0.0, 0.0]
    assert [row.observation["x[-1]"] for row in with_history(SPEC, [d, _row("g", 4.0, 5.0)])] == [
        None,
        None,
    ]


def test_earlier_steps_become_fields():
    rows = [_row("g", 0.0, 1.0), _row("g", 1.0, 2.0, "no"), _row("g", 2.0, 3.0)]
    stacked = with_history(SPEC, rows)
    first, second, third = (row.observation for row in stacked)
    assert first == {"x": 0.0, "x[-1]": 0.0, "go[-1]": "no", "x[-2]": 0.0, "go[-2]": "no"}
    assert second == {"x": 1.0, "x[-1]": 0.0, "go[-1]": "yes", "x[-2]": 0.0, "go[-2]": "no"}
    assert third == {"x": 2.0, "x[-1]": 1.0, "go[-1]": "no", "x[-2]": 0.0, "go[-2]": "yes"}
    assert with_history(SPEC, stacked) == stacked


def test_a_history_needs_one_action_fewer():
    with pytest.raises(ValueError, match="one action fewer"):
        stack_history(SPEC, [{"x": 0.0}], [{"go": "no"}])
