"""The benchmark of the predictor runs, at a small size."""

from pathlib import Path

import pytest

from benchmarks.predictor.__main__ import _stale, main
from benchmarks.predictor.daemon import kill_and_count

pytestmark = pytest.mark.process


@pytest.mark.long
def test_it_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"calls": 6, "connections": 3, "rate": 30, "seconds": 2, "models": 4}
    sizes |= {"kills": 0, "agents": 0}
    assert main([f"--{name}={value}" for name, value in sizes.items()]) == 0
    shown = capsys.readouterr().out
    for what in (
        "rank of 10 actions",
        "outcome, durable",
        "7 switches",
        "memory then",
        "client: wheel",
    ):
        assert what in shown


def test_old_answers_are_counted_from_a_second_after_a_switch() -> None:
    answers = [(9.0, "a"), (10.5, "a"), (12.0, "a"), (13.0, "b"), (14.0, "b"), (21.5, "a")]
    assert _stale(answers, [10.0, 20.0]) == 1


@pytest.mark.long
def test_kills_of_predictor_api_and_daemon_lose_and_double_nothing(tmp_path: Path) -> None:
    killed = kill_and_count(tmp_path / "home", 6)
    assert killed.acknowledged >= 120
    assert (killed.lost, killed.doubled) == (0, 0)
