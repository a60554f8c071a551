from __future__ import annotations

import math

import pytest

from infrastructure.agent_contract import Evaluation, TrainingJob


def test_better_depends_on_the_direction_and_nan_beats_nothing():
    def evaluation(value, higher=True):
        return Evaluation(metrics={"m": value}, primary="m", higher_is_better=higher)

    assert evaluation(2.0).better_than(evaluation(1.0))
    assert evaluation(1.0, higher=False).better_than(evaluation(2.0, higher=False))
    assert not evaluation(math.nan).better_than(evaluation(1.0))
    assert evaluation(1.0).better_than(evaluation(math.nan))
    assert evaluation(1.0).better_than(None)
    assert not evaluation(math.nan).better_than(None)
    with pytest.raises(ValueError, match=r"'m' .* \[\]"):
        Evaluation(metrics={}, primary="m", higher_is_better=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scheduler_counts": "seen"}, "scheduler_counts"),
        ({"epochs": 0}, "epochs"),
        ({"accumulate": 0}, "accumulate"),
    ],
)
def test_a_wrong_job_is_named(change, words):
    functions = dict.fromkeys(("model", "optimizer", "batches", "loss", "evaluate"))
    with pytest.raises(ValueError, match=words):
        TrainingJob(**{**functions, "epochs": 1, **change})
