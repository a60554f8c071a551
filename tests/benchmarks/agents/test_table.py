from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from agents.replay_agent import ReplayAgent
from benchmarks.agents.businesses import BUSINESSES
from benchmarks.agents.records import generate, rule_of
from benchmarks.agents.speed import measure_speed, peak_mebibytes, speed_columns, train_some
from benchmarks.agents.subjects import Subject
from benchmarks.agents.table import Kept, Learned
from benchmarks.agents.training import Effort
from infrastructure.trajectories.genesis_records.replay_trajectories import decode_trajectory

EFFORT = Effort(steps=2, batch_size=32)
DEFINITION = """
[source]
path = "records"
format = "replay-trajectories"

[training]
epochs = 2
"""


@pytest.fixture
def subjects(tmp_path: Path) -> list[Subject]:
    """Two agents of the preset with 200 records each."""
    found = []
    for number, business in enumerate(BUSINESSES[:2]):
        definition = tmp_path / "agents.d" / f"{business.name}.toml"
        definition.parent.mkdir(exist_ok=True)
        definition.write_text(DEFINITION)
        rule = rule_of(business, number)
        records = generate(business, rule, 200, seed=1)
        found.append(
            Subject(
                name=business.name,
                records="generated",
                build=partial(ReplayAgent, definition),
                home=tmp_path,
                transitions=[
                    each
                    for record in records
                    for each in decode_trajectory(json.dumps(record).encode())
                ],
                best_accuracy=1.0 - rule.noise,
            )
        )
    return found


@pytest.mark.process  # trains for a second
def test_each_agent_has_a_row_of_what_it_learned(subjects: list[Subject], tmp_path: Path) -> None:
    kept = Kept(tmp_path / "kept", {"steps": 2})
    learned = Learned(subjects, EFFORT, kept)
    alone = learned.alone("fp32", 1)
    assert learned.alone("fp32", 1) == alone  # kept
    (row, _) = learned.rows({"fp32": [alone]})
    assert row["agent"] == "marketing"
    assert row["best possible"] == "0.950"
    assert float(row["accuracy fp32"]) == pytest.approx(alone["marketing"].accuracy, abs=1e-3)
    assert kept.find("alone", "fp32", 1, "marketing") == alone["marketing"]


def test_trainings_of_other_options_are_not_mixed(tmp_path: Path) -> None:
    Kept(tmp_path, {"steps": 2})
    with pytest.raises(SystemExit, match="choose another --output"):
        Kept(tmp_path, {"steps": 3})


@pytest.mark.process  # trains for a second
def test_speed_and_memory_are_measured(subjects: list[Subject]) -> None:
    assert 0.0 < peak_mebibytes(partial(train_some, subjects, "fp32", EFFORT, 1)) < 500.0
    speed = measure_speed(subjects, "fp32", EFFORT, rounds=2, steps=1)
    assert set(speed.alone) == {"marketing", "builder"}
    assert speed.together > 0.0
    assert not speed.stepped_alone


@pytest.mark.process  # trains for a second
def test_an_agent_that_is_measured_by_itself_has_a_row(subjects: list[Subject]) -> None:
    [(name, columns)] = speed_columns(subjects[:1], EFFORT, rounds=1, steps=1).items()
    assert name == "marketing"
    assert columns["steps/s in the fleet"] == "stepped alone"
