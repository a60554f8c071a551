"""Planted faults: each has an effect, its place is found, and flipping one place misses pairs."""

import pytest

from benchmarks.precision_lab.planted.command import COLUMNS, measure, summary
from benchmarks.precision_lab.planted.faults import (
    REPORTED,
    TUNING,
    distances,
    healthy,
    plant,
    tiny_scale,
)


def test_reported_faults_are_twelve_and_none_of_those_tuned_on():
    assert len(REPORTED) == 12
    assert not {each.__name__ for each in REPORTED} & {each.__name__ for each in TUNING}


def test_the_same_seed_gives_the_same_fault():
    one, other = (plant(distances, 100, "bf16") for _ in range(2))
    assert one.places == other.places
    weights = [
        next(iter(each.experiment.models.values())).state_dict()["encoder.weight"]
        for each in (one, other)
    ]
    assert weights[0].equal(weights[1])


@pytest.mark.process
def test_a_pair_of_places_is_found_that_flipping_misses():
    row = measure(plant(tiny_scale, 100, "fp16"))
    assert tuple(row) == COLUMNS
    assert (row["right"], row["all_right"], row["culprits"]) == ("yes", "yes", "2")
    assert row["flipping_cures"] == "no"
    sound = measure(healthy(2, 100))
    assert (sound["right"], sound["culprits"]) == ("yes", "0")
    assert "1 of 1 faults (1 of 1 cases)" in summary([row, sound])
    assert "in 0 of 1 healthy models" in summary([row, sound])
    assert f"bisect: {row['runs']} to {row['runs']} repetitions" in summary([row, sound])
    assert f"healthy: {float(sound['error']):g} to" in summary([row, sound])
