from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infrastructure.trajectories.genesis_records import read_casebank
from infrastructure.trajectories.genesis_records.casebank import EXCLUDED_FIELDS, SPEC
from infrastructure.trajectories.schema import input_problem, target_problem
from infrastructure.world_model.fitting.training_data import prepare_training_data

CASE = {
    "state": "Test problem",
    "action": "Best trajectory: qa_g1_revision_5533b49f, operators: revision",
    "reward": 0.95,
    "metadata": {"agent": "qa", "had_past_cases": True, "iterations": 1, "safety_score": 0.5},
    "embedding": [0.1, 0.2],
    "case_id": "b09ad52bddc697a4",
}


def write(path: Path, *lines: object) -> Path:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text(text + "\n")
    return path


def test_a_case_becomes_a_transition(tmp_path: Path, skipped: Any) -> None:
    [made] = read_casebank(write(tmp_path / "casebank.jsonl", CASE), skipped)
    assert made.observation == {"state": "Test problem", "agent": "qa", "had_past_cases": "true"}
    assert made.next_observation == {"success": True, "score": 0.95}
    assert made.reward == 0.95
    assert made.terminated
    assert skipped == []


@pytest.mark.parametrize(("reward", "success"), [(0.69, False), (0.7, True)])
def test_success_begins_at_genesis_own_threshold(
    tmp_path: Path, skipped: Any, reward: float, success: bool
) -> None:
    case = CASE | {"reward": reward, "metadata": {}}
    [made] = read_casebank(write(tmp_path / "casebank.jsonl", case), skipped)
    assert made.next_observation["success"] is success
    assert (made.observation["agent"], made.observation["had_past_cases"]) == ("unknown", "unknown")
    assert input_problem(SPEC, made.observation, made.action) is None


def test_fields_that_reveal_the_outcome_are_not_inputs(tmp_path: Path, skipped: Any) -> None:
    """Two cases that differ in every excluded field, and in the outcome, look the same."""
    bad = CASE | {"action": "Safe: False", "reward": 0.1, "embedding": [9.0], "case_id": "x"}
    bad |= {"metadata": CASE["metadata"] | {"iterations": 9, "safe": False, "safety_score": 0.0}}  # type: ignore[operator]
    good, worse = read_casebank(write(tmp_path / "casebank.jsonl", CASE, bad), skipped)
    assert (good.observation, good.action) == (worse.observation, worse.action)
    assert good.next_observation != worse.next_observation
    used = {"state", "reward", "metadata.agent", "metadata.had_past_cases"}
    fields = {f"metadata.{name}" for name in CASE["metadata"]} | set(CASE) - {"metadata"}  # type: ignore[attr-defined]
    assert fields <= used | set(EXCLUDED_FIELDS)
    assert not used & set(EXCLUDED_FIELDS)


def test_spaces_and_case_do_not_change_the_group(tmp_path: Path, skipped: Any) -> None:
    states = ("Test problem", " test\n  Problem ", "other", "")
    cases = [CASE | {"state": state} for state in states]
    groups = [t.group for t in read_casebank(write(tmp_path / "casebank.jsonl", *cases), skipped)]
    assert groups[0] == groups[1] != groups[2]
    assert groups[3] == "(empty)"


def test_damaged_lines_are_skipped_and_named(tmp_path: Path, skipped: Any) -> None:
    lines = ["{torn", CASE, "", CASE | {"reward": 7.0}, "[]", CASE, '{"reward": 0.5}']
    lines += [CASE | {"reward": -0.1}]
    path = write(tmp_path / "casebank.jsonl", *lines)
    assert len(list(read_casebank(path, skipped))) == 2
    assert [(name, line) for name, line, _ in skipped] == [
        ("casebank.jsonl", number) for number in (1, 4, 5, 7, 8)
    ]
    assert "reward" in skipped[1][2]
    assert "state" in skipped[3][2]


def test_a_byte_order_mark_is_ignored(tmp_path: Path, skipped: Any) -> None:
    path = write(tmp_path / "casebank.jsonl", CASE, CASE)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(list(read_casebank(path, skipped))) == 2
    assert skipped == []


def test_a_number_of_many_digits_costs_its_line_only(tmp_path: Path, skipped: Any) -> None:
    path = write(tmp_path / "casebank.jsonl", CASE, json.dumps(CASE | {"reward": 7}), CASE)
    path.write_text(path.read_text().replace(": 7", ": " + 6000 * "7"))
    assert len(list(read_casebank(path, skipped))) == 2
    assert [line for _, line, _ in skipped] == [2]


@settings(
    max_examples=min(60, settings.default.max_examples),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.binary(max_size=200), st.integers(0, 200))
def test_no_damage_stops_the_reader(tmp_path: Path, skipped: Any, noise: bytes, where: int) -> None:
    whole = json.dumps(CASE).encode()
    path = tmp_path / "casebank.jsonl"
    path.write_bytes(whole[:where] + noise + whole[where:] + b"\n" + whole + b"\n")
    assert list(read_casebank(path, skipped))[-1].observation["state"] == "Test problem"


def test_a_missing_file_is_an_error(tmp_path: Path, skipped: Any) -> None:
    with pytest.raises(FileNotFoundError):
        list(read_casebank(tmp_path / "casebank.jsonl", skipped))


def test_the_real_casebank_is_read_whole_and_can_be_trained_on(genesis: Path, skipped: Any) -> None:
    transitions = list(read_casebank(genesis / "casebank.jsonl", skipped))
    assert skipped == []
    assert len(transitions) == 650
    assert len({transition.group for transition in transitions}) == 120
    for transition in transitions:
        assert input_problem(SPEC, transition.observation, transition.action) is None
        assert target_problem(SPEC, transition) is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = prepare_training_data(SPEC, transitions)
    groups = [set(part.groups) for part in data.parts.values()]
    assert not groups[0] & groups[1] | groups[0] & groups[2] | groups[1] & groups[2]
