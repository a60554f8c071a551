"""Trajectories as Genesis' replay buffer stores them become records."""

from __future__ import annotations

import json
import logging
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from genesis_client import Agent
from genesis_client.trajectories import record_trajectories

from infrastructure.trajectories.genesis_records.replay_trajectories import decode_trajectory
from tests.clients.python.predictor_process import PredictorProcess
from tests.patience import crowding, wait_until

pytestmark = pytest.mark.process


class OutcomeTag(Enum):
    SUCCESS = "success"


@dataclass
class ActionStep:
    tool_name: str
    tool_args: dict[str, Any]
    tool_result: Any
    agent_reasoning: str
    timestamp: str = "2026-01-01"


@dataclass
class Trajectory:
    trajectory_id: str
    agent_id: str = "builder_agent_shop"
    task_description: str = "Build a  Shop"
    initial_state: dict[str, Any] = field(default_factory=lambda: {"patterns": 3, "business": "x"})
    steps: tuple[ActionStep, ...] = ()
    final_outcome: Any = "success"
    reward: float = 0.75


STEPS = (
    ActionStep("plan", {"parts": [1, 2]}, None, "first a plan"),
    ActionStep("write", {"file": "ä.py"}, {"ok": True, "lines": 40}, "then the code"),
    ActionStep("test", {}, "3 passed", "does it work"),
)


class ReplayBuffer:
    """Keeps trajectories in memory; refuses those without a step."""

    def __init__(self) -> None:
        self.stored: list[Any] = []

    def store_trajectory(self, trajectory: Any) -> str:
        if not trajectory.steps:
            raise ValueError("a trajectory needs a step")
        self.stored.append(trajectory)
        return trajectory.trajectory_id


def test_the_records_are_those_that_a_dump_gives(agent: Agent, predictor: PredictorProcess) -> None:
    buffer = ReplayBuffer()
    record_trajectories(buffer, {"builder_agent_*": agent})
    trajectory = Trajectory("t/1", steps=STEPS)
    assert buffer.store_trajectory(trajectory) == "t/1"
    assert agent.flush()
    expected = decode_trajectory(json.dumps(asdict(trajectory)).encode())
    recorded = list(predictor.journal("transition").values())
    assert len(recorded) == len(expected) == 3
    for record, transition in zip(recorded, expected, strict=True):
        fields = ("group", "observation", "action", "reward", "next_observation", "terminated")
        assert {name: record[name] for name in fields} == {
            name: getattr(transition, name) for name in fields
        }


def test_a_long_task_is_a_group_of_its_own(agent: Agent, predictor: PredictorProcess) -> None:
    buffer = ReplayBuffer()
    record_trajectories(buffer, {"*": agent})
    for name, task in (("a", "Build " * 50), ("b", "build " * 50), ("c", "build " * 49 + "on")):
        buffer.store_trajectory(Trajectory(name, task_description=task, steps=STEPS[:1]))
    assert agent.flush()
    first, second, third = (record["group"] for record in predictor.journal("transition").values())
    assert first == second != third
    assert len(first) == len(third) == 200


def test_each_trajectory_counts_once_for_the_agent_that_fits(
    agent: Agent, predictor: PredictorProcess
) -> None:
    buffer = ReplayBuffer()
    end = record_trajectories(buffer, {"spec_*": agent})
    others = []
    for _ in range(2):
        others.append(record_trajectories(buffer, {"builder_agent_shop": agent, "*": agent}))
        buffer.store_trajectory(Trajectory("t", steps=STEPS[:1], final_outcome=OutcomeTag.SUCCESS))
    assert agent.flush()
    (record,) = predictor.journal("transition").values()
    assert record["next_observation"] == {"success": True, "score": 0.75}
    end()  # others record around it
    assert "store_trajectory" in vars(buffer)
    end()
    for each in reversed(others):
        each()
        each()
    buffer.store_trajectory(Trajectory("u", steps=STEPS))
    assert (len(buffer.stored), agent.status.waiting_bytes) == (3, 0)


def test_no_failure_reaches_genesis(
    agent: Agent,
    predictor: PredictorProcess,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # those of another test's daemon
    buffer = ReplayBuffer()
    record_trajectories(buffer, {"*": agent})
    strange: Any = ActionStep("call", {"when": object()}, {b"": 1}, "")
    buffer.store_trajectory(Trajectory("t", steps=(strange, strange)))
    nothing: Any = None
    buffer.store_trajectory(Trajectory("u", steps=(nothing,)))
    assert capsys.readouterr().err.count("a trajectory was not recorded: ") == 2
    assert len(buffer.stored) == 2
    with pytest.raises(ValueError, match="a trajectory needs a step"):
        buffer.store_trajectory(Trajectory("v"))
    predictor.kill()
    buffer.store_trajectory(Trajectory("w", steps=STEPS))
    assert len(buffer.stored) == 3


def test_a_buffer_may_be_recorded_by_thousands(tmp_path: Path) -> None:
    """As when each request makes an agent: Genesis' agents share one buffer."""
    buffer = ReplayBuffer()
    with Agent("builder", home=tmp_path, spool=tmp_path) as agent:
        ends = [record_trajectories(buffer, {"spec_*": agent}) for _ in range(2000)]
        assert buffer.store_trajectory(Trajectory("t", steps=STEPS)) == "t"
        for end in ends:
            end()
    assert "store_trajectory" not in vars(buffer)


@pytest.mark.parametrize("buffer", [None, object(), ReplayBuffer])
def test_what_cannot_be_recorded_is_named(buffer: Any, tmp_path: Path) -> None:
    with (
        Agent("builder", home=tmp_path, spool=tmp_path) as agent,
        pytest.raises(TypeError, match="buffer must be a replay buffer"),
    ):
        record_trajectories(buffer, {"*": agent})


def test_what_a_killed_process_has_stored_is_recorded_once(
    predictor: PredictorProcess, tmp_path: Path
) -> None:
    predictor.kill()
    spool = tmp_path / "spool"
    code = (
        "from genesis_client import Agent\n"
        "from genesis_client.trajectories import record_trajectories\n"
        "from tests.clients.python.test_trajectories import STEPS, ReplayBuffer, Trajectory\n"
        f"agent, buffer = Agent('builder', home={str(predictor.folder)!r}, spool={str(spool)!r}), "
        "ReplayBuffer()\n"
        "record_trajectories(buffer, {'*': agent})\n"
        "number = 0\n"
        "while True:\n"
        "    number += 1\n"
        "    print(buffer.store_trajectory(Trajectory(f't{number}', steps=STEPS)), flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    stored = [child.stdout.readline().strip() for _ in range(50)]
    child.kill()
    stored += [line.strip() for line in child.stdout if line.endswith("\n")]
    child.wait()
    child.stdout.close()
    predictor.start()
    buffer, expected = ReplayBuffer(), 3 * len(stored) + 3
    with Agent("builder", home=predictor.folder, spool=spool) as agent:
        record_trajectories(buffer, {"*": agent})
        buffer.store_trajectory(Trajectory("later", steps=STEPS))
        wait_until(lambda: len(predictor.journal("transition")) >= expected)
        assert agent.flush(10.0)
    assert len(predictor.journal("transition")) <= expected + 3  # one more was on its way


def test_recording_is_cheap(tmp_path: Path) -> None:
    buffer = ReplayBuffer()
    trajectory = Trajectory("t", steps=STEPS)
    seconds = []
    with Agent("builder", home=tmp_path, spool=tmp_path) as agent:
        record_trajectories(buffer, {"builder_agent_*": agent})
        for _ in range(500):
            began = time.perf_counter()
            buffer.store_trajectory(trajectory)
            seconds.append(time.perf_counter() - began)
    assert statistics.median(seconds) < 100e-6 * crowding()
