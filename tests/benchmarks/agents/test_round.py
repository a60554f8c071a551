from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.agents.round import (
    COLD,
    SHARED,
    THEN,
    Measured,
    Quality,
    Round,
    RoundFailedError,
    RunResult,
)
from benchmarks.agents.round_tables import (
    OtherWeightsError,
    agent_rows,
    require_equal_weights,
    way_rows,
)

HERE = Path(__file__).parents[3]
OUTCOME = RunResult(published=True, steps=900, weights="a")
QUALITY = Quality(accuracy=0.9, nats=0.3)


def measured(seconds: float, *names: str) -> Measured:
    outcomes = dict.fromkeys(names, OUTCOME)
    return Measured(cpu_seconds=seconds, peak_mebibytes=100.0, outcomes=outcomes)


COLD_RUNS = {
    THEN: {"marketing": measured(30.0, "marketing"), "spec": measured(50.0, "spec")},
    COLD: {"marketing": measured(10.0, "marketing"), "spec": measured(10.0, "spec")},
}


@pytest.mark.process  # two workers, each of which imports torch
@pytest.mark.long
def test_a_round_compares_the_workers_of_two_checkouts(tmp_path: Path) -> None:
    measuring = Round(tmp_path, "fp32", HERE)
    measuring.prepare(200, 2)
    then, now = (measuring.cold(way, "marketing") for way in (THEN, COLD))
    assert then.outcomes["marketing"].weights == now.outcomes["marketing"].weights
    assert 4 < now.outcomes["marketing"].steps <= 20  # one for each epoch
    assert now.cpu_seconds > 0.5
    assert now.peak_mebibytes > 100.0

    kept = next((tmp_path / "measured").glob(f"cold-workers-{'?' * 12}-marketing.json"))
    content = json.loads(kept.read_text())
    kept.write_text(json.dumps(content | {"cpu_seconds": 3.5}))
    again = Round(tmp_path, "fp32", None)
    again.prepare(200, 2)
    assert again.cold(COLD, "marketing") == replace(now, cpu_seconds=3.5)


def test_another_checkout_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(RoundFailedError, match=f"code of {tmp_path}"):
        Round(tmp_path, "fp32", tmp_path)


def test_each_way_is_compared_with_the_first_and_the_one_before() -> None:
    rows, columns = way_rows(COLD_RUNS, {SHARED: measured(16.0, "marketing", "spec")})
    assert [row["first way ÷ this"] for row in rows] == ["1.00", "4.00", "5.00"]
    assert [row["way before ÷ this"] for row in rows] == ["1.00", "4.00", "1.25"]
    assert [row["published"] for row in rows] == ["2", "2", "2"]
    assert set(columns) == set(rows[0])


def test_an_agent_that_published_nothing_has_no_accuracy() -> None:
    qualities = {THEN: {"marketing": QUALITY, "spec": QUALITY}, COLD: {"marketing": QUALITY}}
    (marketing, spec), columns = agent_rows(COLD_RUNS, qualities)
    assert set(columns) == set(marketing)
    assert marketing["CPU seconds, then"] == "30.0"
    assert marketing["CPU seconds, now"] == "10.0"
    assert marketing["accuracy, now"] == "0.900"
    assert marketing["best possible"] == "0.95"
    assert spec["accuracy, now"] == "none published"


def test_other_weights_are_an_error() -> None:
    other = replace(OUTCOME, weights="b")
    together = replace(measured(1.0), outcomes={"marketing": OUTCOME, "spec": other})
    with pytest.raises(OtherWeightsError, match="spec has other weights"):
        require_equal_weights(SHARED, together, COLD_RUNS[COLD])
    require_equal_weights(SHARED, measured(1.0, "spec"), COLD_RUNS[COLD])
