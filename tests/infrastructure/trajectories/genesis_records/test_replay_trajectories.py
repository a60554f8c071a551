from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infrastructure.trajectories.genesis_records import read_replay_trajectories
from infrastructure.trajectories.genesis_records.replay_trajectories import EXCLUDED_FIELDS, SPEC
from infrastructure.trajectories.schema import input_problem, target_problem

TRAJECTORY = {
    "trajectory_id": "t1",
    "agent_id": "builder",
    "task_description": "Build a form",
    "initial_state": {"business_id": "b1", "patterns_available": 3},
    "steps": [
        {"tool_name": "search", "tool_args": {"q": "form"}, "tool_result": "three hits"},
        {"tool_name": "write", "tool_args": "form.html", "agent_reasoning": "as in the first"},
    ],
    "final_outcome": "success",
    "reward": 0.8,
    "duration_seconds": 12.0,
}
# What Genesis' own class declares, and of a step.
FIELDS = {"trajectory_id", "agent_id", "task_description", "initial_state", "steps", "reward"}
FIELDS |= {"final_outcome", "metadata", "created_at", "duration_seconds", "failure_rationale"}
FIELDS |= {"error_category", "fix_applied"}
STEP_FIELDS = {"timestamp", "tool_name", "tool_args", "tool_result", "agent_reasoning"}


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def test_steps_become_transitions_of_one_group(tmp_path: Path, skipped: Any) -> None:
    path = write(tmp_path / "dump.jsonl", TRAJECTORY)
    first, second = read_replay_trajectories(path, skipped)
    assert first.group == second.group
    assert (first.observation["last_tool"], first.observation["last_result"]) == ("", "")
    assert second.observation["last_result"] == "three hits"
    assert (first.reward, second.reward) == (0.0, 0.8)
    assert (first.terminated, second.terminated) == (False, True)
    assert second.next_observation == {"success": True, "score": 0.8}
    for transition in (first, second):
        assert input_problem(SPEC, transition.observation, transition.action) is None
        assert target_problem(SPEC, transition) is None


def test_a_step_does_not_see_its_own_result(tmp_path: Path, skipped: Any) -> None:
    other = json.loads(json.dumps(TRAJECTORY))
    other["steps"][0]["tool_result"] = "fatal error"
    other |= {"final_outcome": "failure", "reward": 0.1, "failure_rationale": "no hits"}
    path = write(tmp_path / "dump.jsonl", TRAJECTORY, other)
    first, _, same, _ = read_replay_trajectories(path, skipped)
    assert (first.observation, first.action) == (same.observation, same.action)
    used = {"agent_id", "task_description", "initial_state", "steps"}
    used |= {"steps.tool_name", "steps.tool_args", "steps.agent_reasoning"}
    assert used | set(EXCLUDED_FIELDS) == FIELDS | {f"steps.{name}" for name in STEP_FIELDS}
    assert not used & set(EXCLUDED_FIELDS)


@pytest.mark.parametrize(
    ("outcome", "success"), [("success", True), ("failure", False), ("partial", False)]
)
def test_only_a_success_is_one(tmp_path: Path, skipped: Any, outcome: str, success: bool) -> None:
    path = write(tmp_path / "dump.jsonl", TRAJECTORY | {"final_outcome": outcome})
    made = list(read_replay_trajectories(path, skipped))
    assert [each.next_observation["success"] for each in made] == [success] * 2
    assert [each.observation["step"] for each in made] == [0.0, 1.0]
    assert [each.action["reasoning"] for each in made] == ["", "as in the first"]


def test_the_same_task_in_the_same_state_is_one_group(tmp_path: Path, skipped: Any) -> None:
    later = TRAJECTORY | {"trajectory_id": "t2", "task_description": "build  a FORM"}
    later |= {"initial_state": dict(reversed(TRAJECTORY["initial_state"].items()))}  # type: ignore[attr-defined]
    elsewhere = TRAJECTORY | {"initial_state": {"business_id": "b2"}}
    path = write(tmp_path / "dump.jsonl", TRAJECTORY, later, elsewhere)
    groups = [transition.group for transition in read_replay_trajectories(path, skipped)]
    assert len(set(groups[:4])) == 1
    assert len(set(groups)) == 2


def test_damaged_lines_are_skipped_and_named(tmp_path: Path, skipped: Any) -> None:
    path = write(tmp_path / "dump.jsonl", TRAJECTORY | {"steps": []}, TRAJECTORY, {"steps": 3})
    assert len(list(read_replay_trajectories(path, skipped))) == 2
    assert [(name, line) for name, line, _ in skipped] == [("dump.jsonl", 1), ("dump.jsonl", 3)]
