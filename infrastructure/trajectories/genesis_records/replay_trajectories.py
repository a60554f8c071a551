"""Trajectories of Genesis' replay buffer, dumped as one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import Field, JsonValue

from infrastructure.agent_contract.transition import Box, Text, Transition
from infrastructure.trajectories.genesis_records.records import (
    Record,
    Score,
    decode_line,
    distinct_state,
    outcome,
    outcome_spec,
    read_lines,
)
from infrastructure.trajectories.segments import OnSkip

SPEC = outcome_spec(
    observation={
        "task": Text(),
        "state": Text(),
        "agent": Text(buckets=256),
        "step": Box(),
        "last_tool": Text(buckets=512),
        "last_result": Text(),
    },
    action={"tool": Text(buckets=512), "arguments": Text(), "reasoning": Text()},
)

EXCLUDED_FIELDS: Mapping[str, str] = {
    "final_outcome": "the target",
    "reward": "the target",
    "steps.tool_result": "the result of the step; an input of the next step only",
    "steps.timestamp": "unique to each step",
    "failure_rationale": "written afterwards, for failures only",
    "error_category": "written afterwards, for failures only",
    "fix_applied": "written afterwards",
    "duration_seconds": "only known afterwards",
    "metadata": "arbitrary, written afterwards",
    "trajectory_id": "unique to each trajectory",
    "created_at": "unique to each trajectory",
}


class _Step(Record):
    tool_name: str
    tool_args: JsonValue = None
    tool_result: JsonValue = None
    agent_reasoning: str = ""


class _Trajectory(Record):
    agent_id: str = "unknown"
    task_description: str
    initial_state: dict[str, JsonValue] = Field(default_factory=dict)
    steps: tuple[_Step, ...] = Field(min_length=1)
    final_outcome: str
    reward: Score


def read_replay_trajectories(path: Path, on_skip: OnSkip) -> Iterator[Transition]:
    """Read the steps of the trajectories in *path*, grouped by task and initial state.

    The targets of each step are the outcome of its whole trajectory; the last step carries the
    reward.

    Args:
        path: File of JSON lines, each a dumped ``Trajectory`` of the buffer.

    Raises:
        OSError: *path* cannot be read.
    """
    return read_lines(path, decode_trajectory, on_skip)


def decode_trajectory(line: bytes) -> list[Transition]:
    """Decode the steps of one trajectory; see `read_replay_trajectories`.

    Raises:
        ValueError: *line* is not a trajectory.
    """
    trajectory = decode_line(line, _Trajectory)
    state = _as_text(trajectory.initial_state)
    before = _Step(tool_name="")
    transitions = []
    for number, step in enumerate(trajectory.steps):
        last = number + 1 == len(trajectory.steps)
        transitions.append(
            Transition(
                group=distinct_state(trajectory.task_description, state),
                observation={
                    "task": trajectory.task_description,
                    "state": state,
                    "agent": trajectory.agent_id,
                    "step": float(number),
                    "last_tool": before.tool_name,
                    "last_result": _as_text(before.tool_result),
                },
                action={
                    "tool": step.tool_name,
                    "arguments": _as_text(step.tool_args),
                    "reasoning": step.agent_reasoning,
                },
                reward=trajectory.reward if last else 0.0,
                next_observation=outcome(
                    trajectory.reward, success=trajectory.final_outcome == "success"
                ),
                terminated=last,
            )
        )
        before = step
    return transitions


def _as_text(value: JsonValue) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
