from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infrastructure.trajectories.genesis_records import read_trajectory_pool
from infrastructure.trajectories.genesis_records.trajectory_pool import EXCLUDED_FIELDS, SPEC
from infrastructure.trajectories.schema import input_problem, target_problem

ROOT = {
    "trajectory_id": "qa_g0",
    "proposed_strategy": "Baseline approach 0 for: sort a list",
    "operator_applied": "baseline",
    "success_score": 0.4,
    "status": "failure",
    "test_results": {"tasks_passed": 4},
}
CHILD = {
    "parent_trajectories": ["qa_g0", "gone"],
    "proposed_strategy": "another way",
    "problem_diagnosis": "it compares the wrong way round",
    "operator_applied": "revision",
    "code_after": "def f(): ...",
    "success_score": 0.9,
    "metrics": {"accuracy": 0.9},
}


PARENT = {"parent_trajectories": ["a"]}
USED = {"success_score", "operator_applied", "parent_trajectories", "problem_diagnosis"}
USED |= {"proposed_strategy", "strategy_description", "code_changes", "code_after"}
# What Genesis' own class declares.
FIELDS = USED | {"trajectory_id", "generation", "agent_name", "modified_files", "tools_used"}
FIELDS |= {"reasoning_pattern", "assumptions_made", "status", "test_results", "metrics"}
FIELDS |= {"failure_reasons", "key_insights", "created_at", "execution_time_seconds"}
FIELDS |= {"cost_dollars", "plan_id"}


def write(path: Path, trajectories: object) -> Path:
    path.write_text(json.dumps({"agent_name": "qa", "trajectories": trajectories}))
    return path


def test_a_child_knows_its_parents_and_shares_their_group(tmp_path: Path, skipped: Any) -> None:
    path = write(tmp_path / "pool.json", {"qa_g0": ROOT, "qa_g1": CHILD})
    root, child = read_trajectory_pool(path, skipped)
    assert root.group == child.group
    assert child.observation["problem"] == "sort a list"
    assert child.observation["parent_score"] == 0.4
    assert child.reward == 0.5
    assert child.next_observation == {"success": True, "score": 0.9}
    assert child.action["code"] == "def f(): ..."
    assert skipped == []


def test_a_grandchild_of_two_parents(tmp_path: Path, skipped: Any) -> None:
    heir = CHILD | {"parent_trajectories": ["b", "a", "gone"], "code_changes": "+ if"}
    del heir["code_after"]
    path = write(tmp_path / "pool.json", {"a": ROOT, "b": CHILD | PARENT, "c": heir})
    heir_made = list(read_trajectory_pool(path, skipped))[-1]
    assert heir_made.observation["problem"] == "sort a list", "of the root, by way of a child"
    assert heir_made.observation["parent_score"] == 0.9, "the better one's"
    assert heir_made.observation["parents"] == 3.0
    assert heir_made.action["code"] == "+ if"


def test_other_problems_are_other_groups_and_unnamed_ones_are_one(
    tmp_path: Path, skipped: Any
) -> None:
    other = ROOT | {"proposed_strategy": "Baseline approach 0 for: parse a date"}
    unnamed = ROOT | {"proposed_strategy": "anything"}
    pool = {"a": ROOT, "b": other, "c": unnamed, "d": unnamed | {"problem_diagnosis": "x"}}
    groups = [t.group for t in read_trajectory_pool(write(tmp_path / "p.json", pool), skipped)]
    assert len(set(groups)) == 3
    assert groups[2] == groups[3] == f"unnamed, in {tmp_path.name}"


def test_fields_that_reveal_the_outcome_are_not_inputs(tmp_path: Path, skipped: Any) -> None:
    worse = ROOT | {"success_score": 0.1, "status": "success", "test_results": {}}
    path = write(tmp_path / "pool.json", {"a": ROOT, "b": worse})
    first, second = read_trajectory_pool(path, skipped)
    assert (first.observation, first.action) == (second.observation, second.action)
    assert USED | set(EXCLUDED_FIELDS) == FIELDS
    assert USED & set(EXCLUDED_FIELDS) == {"success_score"}, "the parents' alone"


def test_lineages_in_a_circle_end(tmp_path: Path, skipped: Any) -> None:
    pool = {
        "a": CHILD | {"parent_trajectories": ["b"]},
        "b": CHILD | {"parent_trajectories": ["a"]},
    }
    assert len(list(read_trajectory_pool(write(tmp_path / "pool.json", pool), skipped))) == 2


def test_damage_is_named(tmp_path: Path, skipped: Any) -> None:
    path = write(tmp_path / "pool.json", {"a": ROOT, "b": {"success_score": "high"}})
    assert len(list(read_trajectory_pool(path, skipped))) == 1
    assert "trajectory b: success_score" in skipped.pop()[2]
    path.write_text('{"trajectories":\n {"a": ')
    assert list(read_trajectory_pool(path, skipped)) == []
    assert skipped.pop()[:2] == ("pool.json", 2)
    path.write_text("[]")
    assert list(read_trajectory_pool(path, skipped)) == []
    assert "trajectories" in skipped.pop()[2]
    path.write_text("[" * 100_000)
    assert list(read_trajectory_pool(path, skipped)) == []
    assert "recursion" in skipped.pop()[2]


def test_a_number_of_many_digits_costs_its_trajectory_only(tmp_path: Path, skipped: Any) -> None:
    path = write(tmp_path / "pool.json", {"a": ROOT | {"success_score": 7}, "b": CHILD})
    path.write_text(path.read_text().replace(": 7", ": " + 6000 * "7"))
    [made] = read_trajectory_pool(path, skipped)
    assert made.reward == 0.9
    [(_, line, reason)] = skipped
    assert (line, reason[:28]) == (1, "trajectory a: success_score:")
    path.write_text(path.read_text().replace('"success_score": 7', '"success_score": 1, "x": 7'))
    assert len(list(read_trajectory_pool(path, skipped))) == 2


@settings(
    max_examples=min(60, settings.default.max_examples),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.binary(max_size=60), st.integers(0, 400))
def test_no_damage_stops_the_reader(tmp_path: Path, skipped: Any, noise: bytes, where: int) -> None:
    path = write(tmp_path / "pool.json", {"qa_g0": ROOT, "qa_g1": CHILD})
    whole = path.read_bytes()
    path.write_bytes(whole[:where] + noise + whole[where:])
    assert len(list(read_trajectory_pool(path, skipped))) <= 2


def test_the_real_pool_meets_the_spec(genesis: Path, skipped: Any) -> None:
    transitions = list(read_trajectory_pool(genesis / "trajectory_pool.json", skipped))
    assert skipped == []
    assert len(transitions) == 2
    assert {transition.group for transition in transitions} == {"test otel tracing"}
    for transition in transitions:
        assert input_problem(SPEC, transition.observation, transition.action) is None
        assert target_problem(SPEC, transition) is None
