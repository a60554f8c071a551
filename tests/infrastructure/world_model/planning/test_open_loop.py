from dataclasses import replace

import pytest

from infrastructure.agent_contract.transition import Transition
from infrastructure.world_model.planning import open_loop_error


def _sequence(group, steps=20):
    place, speed, rows = 0.0, 0.3, []
    for step in range(steps):
        push = (0.3, -0.2)[step % 2]
        after = (place + 0.2 * speed, speed + push)
        rows.append(
            Transition(
                group=group,
                observation={"x": (place, speed)},
                action={"push": push},
                next_observation={"x": after},
            )
        )
        place, speed = after
    return rows


def test_a_good_model_beats_a_state_that_stays(line):
    rows = [row for number in range(4) for row in _sequence(f"g{number}")]
    error = open_loop_error(line.fitted_model, rows, 9)
    assert error.groups == [f"g{number}" for number in range(4) for _ in range(2)]
    assert float(error.squared.mean()) < 0.2 * float(error.unchanged.mean())


def test_sequences_that_are_too_short_tell_nothing(line):
    assert open_loop_error(line.fitted_model, _sequence("g", 5), 10) is None
    with pytest.raises(ValueError, match="at least 1"):
        open_loop_error(line.fitted_model, [], 0)


def test_an_action_that_was_not_recorded_counts_as_average(line):
    rows = [row for number in range(4) for row in _sequence(f"g{number}")]
    gaps = [
        replace(row, action={"push": None} if at % 7 == 3 else row.action)
        for at, row in enumerate(rows)
    ]
    error = open_loop_error(line.fitted_model, gaps, 9)
    assert float(error.squared.mean()) < 0.5 * float(error.unchanged.mean())
