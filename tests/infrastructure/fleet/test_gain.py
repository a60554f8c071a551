from __future__ import annotations

import pytest

from infrastructure.fleet.gain import MEASURED_ROUNDS, GainMeasurement


def measure(alone: float, together: float) -> tuple[GainMeasurement, list[bool]]:
    measurement, ways = GainMeasurement(), []
    while measurement.ratio is None:
        ways.append(measurement.step_together)
        measurement.record(together if ways[-1] else alone)
    return measurement, ways


@pytest.mark.parametrize(
    ("alone", "together", "pays"), [(3.0, 2.0, True), (1.0, 1.0, False), (0.0, 0.0, False)]
)
def test_the_faster_way_is_kept(alone: float, together: float, pays: bool) -> None:
    measurement, _ = measure(alone, together)
    assert measurement.ratio == (alone / together if together else 0.0)
    assert measurement.step_together is pays
    measurement.record(9.0)
    assert measurement.step_together is pays


def test_both_ways_take_turns_after_the_warm_up() -> None:
    _, ways = measure(2.0, 1.0)
    assert ways == [True] * 3 + [False, False, True, True] * 5
    assert len(ways) == MEASURED_ROUNDS


def test_one_slow_step_does_not_decide() -> None:
    measurement = GainMeasurement()
    for number in range(MEASURED_ROUNDS):
        measurement.record(500.0 if number == 9 else 1.0 if measurement.step_together else 2.0)
    assert measurement.ratio == 2.0
