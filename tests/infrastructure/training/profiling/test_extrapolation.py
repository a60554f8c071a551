from __future__ import annotations

from dataclasses import replace

import pytest

from infrastructure.events.profile_report import PhaseCost
from infrastructure.training.diagnostics.phase_clock import PhaseTime
from infrastructure.training.profiling import TrainingTimes, training_costs

PART = TrainingTimes(
    set_up={"set up": PhaseTime(1, 0.5, 0.5), "batches": PhaseTime(1, 0.5, 0.5)},
    first={"forward": PhaseTime(5, 2.0, 2.0), "loop": PhaseTime(5, 1.0, 1.0)},
    steady={
        "forward": PhaseTime(20, 4.0, 2.0),
        "loop": PhaseTime(20, 2.0, 2.0),
        "evaluate": PhaseTime(2, 3.0, 1.0, peak_bytes=7),
        "checkpoint": PhaseTime(2, 0.2, 0.1),
    },
    first_steps=5,
    steady_steps=20,
    total_steps=105,
    epochs=10,
    checkpoint_interval_seconds=10.0,
)


def costs(times: TrainingTimes) -> dict[str, PhaseCost]:
    return {each.phase: each for each in training_costs(times)}


def test_each_phase_is_multiplied_by_what_it_depends_on() -> None:
    found = costs(PART)
    assert list(found) == ["set up", "first steps", "forward", "loop", "evaluate", "checkpoint"]
    assert found["set up"].run_wall_seconds == 1.0
    assert found["first steps"].run_wall_seconds == 3.0
    assert found["forward"].run_wall_seconds == pytest.approx(4.0 * 100 / 20)
    assert found["forward"].run_cpu_seconds == pytest.approx(2.0 * 100 / 20)
    assert (found["evaluate"].measured, found["evaluate"].whole) == (2, 10.0)
    assert found["evaluate"].run_wall_seconds == pytest.approx(15.0)
    assert found["evaluate"].peak_bytes == 7
    # 1 + 3 + 20 + 10 + 15 seconds, of which one checkpoint in ten seconds
    assert found["checkpoint"].run_wall_seconds == pytest.approx(4 * 0.1)
    assert costs(replace(PART, checkpoint_interval_seconds=1e-3))["checkpoint"].whole == 105


def test_steps_of_an_unknown_number_are_not_multiplied() -> None:
    found = costs(replace(PART, total_steps=None))
    assert found["forward"].run_wall_seconds is None
    assert found["checkpoint"].run_wall_seconds is None
    assert found["evaluate"].run_wall_seconds == pytest.approx(15.0)


def test_a_training_that_was_measured_whole_is_not_multiplied() -> None:
    found = costs(replace(PART, total_steps=25, complete=True, epochs=2))
    assert found["forward"].factor == found["evaluate"].factor == 1.0


def test_a_training_shorter_than_its_first_steps() -> None:
    short = replace(
        PART, first=PART.steady, steady={}, first_steps=20, steady_steps=0, total_steps=20
    )
    found = costs(replace(short, complete=True))
    assert "first steps" not in found
    assert found["forward"].run_wall_seconds == 4.0


def test_rounds_of_a_policy_are_generated_once_each() -> None:
    measured = {"rollout": PhaseTime(3, 6.0, 6.0), "warm-up": PhaseTime(2, 1.0, 1.0)}
    generated = PART.steady | measured
    begun = {**PART.set_up, "rollout": PhaseTime(1, 2.0, 2.0)}
    found = costs(replace(PART, steady=generated, set_up=begun, rounds=40, warm_up_rounds=8))
    assert found["rollout"].run_wall_seconds == pytest.approx(80.0)
    assert found["warm-up"].run_wall_seconds == pytest.approx(4.0)
    assert found["set up"].run_wall_seconds == 1.0
