"""The benchmark of the predictor runs, at a small size."""

import pytest

from benchmarks.predictor.__main__ import _stale, main

pytestmark = pytest.mark.process


def test_it_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"calls": 6, "connections": 3, "rate": 30, "seconds": 2, "models": 4}
    sizes |= {"kills": 2, "agents": 0}
    assert main([f"--{name}={value}" for name, value in sizes.items()]) == 0
    shown = capsys.readouterr().out
    for what in ("rank of 10 actions", "outcome, durable", "7 switches", "memory then", "0 / 0 of"):
        assert what in shown


def test_old_answers_are_counted_from_a_second_after_a_switch() -> None:
    answers = [(9.0, "a"), (10.5, "a"), (12.0, "a"), (13.0, "b"), (14.0, "b"), (21.5, "a")]
    assert _stale(answers, [10.0, 20.0]) == 1
