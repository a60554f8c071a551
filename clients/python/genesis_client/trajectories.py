"""Records the trajectories that Genesis' replay buffer stores, without another program."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from genesis_client.agent import MOST_GROUP, Agent

_METHOD = "store_trajectory"
_log = logging.getLogger("genesis_client")


class Step(Protocol):
    """Step of a trajectory: a call of a tool."""

    tool_name: str
    tool_args: object
    tool_result: object
    agent_reasoning: str


class Trajectory(Protocol):
    """What is read of Genesis' ``Trajectory``."""

    trajectory_id: str
    agent_id: str
    task_description: str
    initial_state: Mapping[str, object]
    steps: Sequence[Step]
    final_outcome: object
    reward: float


def record_trajectories(
    buffer: object,
    agents: Mapping[str, Agent],
    *,
    group: Callable[[Trajectory], str] | None = None,
) -> Callable[[], None]:
    """Record the steps of each trajectory that *buffer* stores from now on.

    The fields are those of the source format ``replay-trajectories``, and a trajectory that is
    stored twice is recorded once. A failure to record is logged, never raised.

    Args:
        buffer: Genesis' replay buffer; its ``store_trajectory`` is replaced.
        agents: Agents by patterns of the ids in trajectories, such as ``builder_agent_*``. The
            first that fits counts; a trajectory that none fits is not recorded.
        group: Function that names the group of a trajectory, such as that of the decisions in it;
            by default equal tasks and initial states are one group.

    Returns:
        Function that ends the recording.

    Raises:
        TypeError: *buffer* is not an object whose ``store_trajectory`` can be replaced.
    """
    if isinstance(buffer, type) or not hasattr(buffer, "__dict__") or not hasattr(buffer, _METHOD):
        raise TypeError(
            f"buffer must be a replay buffer whose {_METHOD} can be replaced, got {buffer!r:.80}"
        )
    store = vars(buffer).get(_METHOD)
    if not isinstance(store, _RecordingStore):
        store = _RecordingStore(getattr(buffer, _METHOD), store)
        setattr(buffer, _METHOD, store)
    recording: _RecordingStore = store

    def record(trajectory: Trajectory) -> None:
        _record(trajectory, agents, group)

    def end() -> None:
        if record in recording.recorders:
            recording.recorders.remove(record)
        if recording.recorders or vars(buffer).get(_METHOD) is not recording:
            return  # others record, or another wrapper is around it
        if recording.before is None:
            delattr(buffer, _METHOD)
        else:
            setattr(buffer, _METHOD, recording.before)

    recording.recorders.append(record)
    return end


class _RecordingStore:
    """``store_trajectory`` of a buffer, and what records its trajectories.

    One for a buffer: all agents of a Genesis share it, and calls around calls reach a limit.

    Args:
        store: The buffer's own method.
        before: What stood in the buffer itself under that name, or None.
    """

    def __init__(self, store: Callable[[Trajectory], object], before: object) -> None:
        self.store, self.before = store, before
        self.recorders: list[Callable[[Trajectory], None]] = []

    def __call__(self, trajectory: Trajectory) -> object:
        result = self.store(trajectory)
        for record in tuple(self.recorders):
            try:
                record(trajectory)
            except Exception as error:
                _log.warning("a trajectory was not recorded: %r", error)
        return result


def _record(
    trajectory: Trajectory,
    agents: Mapping[str, Agent],
    group: Callable[[Trajectory], str] | None,
) -> None:
    fits = (agent for each, agent in agents.items() if fnmatchcase(trajectory.agent_id, each))
    agent = next(fits, None)
    if agent is None:
        return
    state = _as_text(trajectory.initial_state)
    outcome = getattr(trajectory.final_outcome, "value", trajectory.final_outcome)
    name = group(trajectory) if group else _group(trajectory.task_description, state)
    last_tool, last_result = "", ""
    for number, step in enumerate(trajectory.steps):
        last = number + 1 == len(trajectory.steps)
        agent.record(
            record_id=f"{_digest(trajectory)}-{number}",
            group=name,
            observation={
                "task": trajectory.task_description,
                "state": state,
                "agent": trajectory.agent_id,
                "step": float(number),
                "last_tool": last_tool,
                "last_result": last_result,
            },
            action={
                "tool": step.tool_name,
                "arguments": _as_text(step.tool_args),
                "reasoning": step.agent_reasoning,
            },
            reward=trajectory.reward if last else 0.0,
            next_observation={"success": outcome == "success", "score": trajectory.reward},
            terminated=last,
        )
        last_tool, last_result = step.tool_name, _as_text(step.tool_result)


def _digest(trajectory: Trajectory) -> str:
    name = f"{trajectory.agent_id} {trajectory.trajectory_id}"
    return hashlib.blake2s(name.encode("utf-8", "replace"), digest_size=16).hexdigest()


def _group(*texts: str) -> str:
    """Return equal groups for texts that differ only in spaces and case."""
    name = " | ".join(" ".join(text.casefold().split()) for text in texts)
    if len(name) <= MOST_GROUP:
        return name
    digest = hashlib.blake2s(name.encode("utf-8", "replace"), digest_size=16).hexdigest()
    return f"{name[: MOST_GROUP - len(digest) - 1]}~{digest}"


def _as_text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
