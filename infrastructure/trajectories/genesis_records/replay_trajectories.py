"""Trajectories of Genesis' replay buffer, dumped as one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    Text,
    Transition,
    TransitionSpec,
)
from infrastructure.trajectories.genesis_records.reading import (
    OnSkip,
    Score,
    distinct_state,
    read_lines,
)

SPEC = TransitionSpec(
    observation={
        "task": Text(),
        "state": Text(),
        "agent": Text(buckets=256),
        "step": Box(),
        "last_tool": Text(buckets=512),
        "last_result": Text(),
    },
    action={"tool": Text(buckets=512), "arguments": Text(), "reasoning": Text()},
    targets={"success": Discrete(values=("false", "true")), "score": Box()},
    success=("success", "true"),
    improvement="score",
)

LEFT_OUT: Mapping[str, str] = {
    "final_outcome": "the target",
    "reward": "the target",
    "steps.tool_result": "what the step led to; an input of the next step only",
    "steps.timestamp": "no later step has the same",
    "failure_rationale": "written afterwards, for failures only",
    "error_category": "written afterwards, for failures only",
    "fix_applied": "written afterwards",
    "duration_seconds": "known afterwards only",
    "metadata": "anything, written afterwards",
    "trajectory_id": "no later trajectory has the same",
    "created_at": "no later trajectory has the same",
}


class _Step(BaseModel):
    model_config = ConfigDict(extra="ignore")
    tool_name: str
    tool_args: JsonValue = None
    tool_result: JsonValue = None
    agent_reasoning: str = ""


class _Trajectory(BaseModel):
    model_config = ConfigDict(extra="ignore")
    agent_id: str = "unknown"
    task_description: str
    initial_state: dict[str, JsonValue] = Field(default_factory=dict)
    steps: tuple[_Step, ...] = Field(min_length=1)
    final_outcome: str
    reward: Score


def read_replay_trajectories(path: Path, on_skip: OnSkip) -> Iterator[Transition]:
    """The steps of the trajectories in *path*, grouped by task and initial state.

    Each step is to predict how its whole trajectory ends; its reward is given at the last one.

    Args:
        path: JSON lines, as ``Trajectory`` objects of the buffer are dumped.
        on_skip: Told of each damaged line.

    Raises:
        OSError: *path* cannot be read.
    """
    for trajectory in read_lines(path, _Trajectory, on_skip):
        state = _as_text(trajectory.initial_state)
        before = _Step(tool_name="")
        for number, step in enumerate(trajectory.steps):
            last = number + 1 == len(trajectory.steps)
            yield Transition(
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
                next_observation={
                    "success": trajectory.final_outcome == "success",
                    "score": trajectory.reward,
                },
                terminated=last,
            )
            before = step


def _as_text(value: JsonValue) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
