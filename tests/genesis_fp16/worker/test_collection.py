"""Data is collected once for each run; a lost snapshot sets the checkpoints aside."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from genesis_fp16.worker.channel import ProgressReporter
from genesis_fp16.worker.collection import Collection, check_type, repeated_snapshot
from infrastructure.agent_contract import RunContext, Transition
from infrastructure.agent_contract.run_context import Budget
from infrastructure.decisions import DecisionLog
from infrastructure.events.event import BaseEvent, Progress
from infrastructure.trajectories import ReplayBuffer

Collect = Callable[..., Collection]


class Agent:
    """Yields *count* transitions, and counts how often it was asked to collect."""

    def __init__(self, count: int) -> None:
        self.count, self.calls, self.closed = count, 0, False

    def collect(self, _context: RunContext) -> Iterator[Any]:
        self.calls += 1
        try:
            for index in range(self.count):
                yield Transition(group=str(index % 2), observation={"x": 1.0}, action={})
        finally:
            self.closed = True


@pytest.fixture
def events() -> list[BaseEvent]:
    return []


@pytest.fixture
def collection(tmp_path: Path, events: list[BaseEvent]) -> Collect:
    """Make the collection of one attempt."""

    def make(agent: Any, attempt: int = 1, transitions: int = 100) -> Collection:
        context = SimpleNamespace(
            run_folder=tmp_path / "run",
            agent_folder=tmp_path / "agent",
            attempt=attempt,
            budget=Budget(seconds=60.0, transitions=transitions),
            logger=structlog.get_logger(),
        )
        (tmp_path / "run").mkdir(exist_ok=True)
        progress = ProgressReporter(events.append, clock=lambda: 0.0)
        return Collection(agent, context, progress, begin=lambda: None, poll=lambda: None)

    return make


def test_a_later_attempt_uses_the_data_of_the_first(
    collection: Collect, tmp_path: Path, events: list[BaseEvent]
) -> None:
    agent = Agent(5)
    first = collection(agent).snapshot(tmp_path / "replay")
    assert isinstance(events[-1], Progress)
    assert (events[-1].done, events[-1].total) == (5, 100)
    assert collection(agent, 2).snapshot(tmp_path / "replay") == first
    assert agent.calls == 1
    assert len(collection(agent).buffer(tmp_path / "replay").read(first)) == 5
    assert repeated_snapshot(tmp_path / "run") == first


def test_the_budget_ends_the_collection_and_closes_the_generator(
    collection: Collect, tmp_path: Path
) -> None:
    agent = Agent(1000)
    snapshot = collection(agent, transitions=7).snapshot(tmp_path / "replay")
    assert len(collection(agent).buffer(tmp_path / "replay").read(snapshot)) == 7
    assert agent.closed


@pytest.mark.parametrize("content", [None, '{"torn', '{"segment": "many"}'])
def test_a_lost_snapshot_sets_the_checkpoints_aside(
    collection: Collect, tmp_path: Path, content: str | None
) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    if content is not None:
        (run / "snapshot.json").write_text(content)
    with capture_logs() as lines:
        collection(Agent(2), 3).snapshot(tmp_path / "replay")
    [warning] = [line for line in lines if line["event"] == "snapshot_lost"]
    assert warning["file"] == str(run / "snapshot.json")
    assert not (run / "checkpoints").exists()
    assert (run / "checkpoints.set-aside-3").is_dir()
    assert (run / "snapshot.json.set-aside-3").exists() == (content is not None)
    assert json.loads((run / "snapshot.json").read_text())


def test_a_missing_snapshot_cannot_be_repeated(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"snapshot\.json"):
        repeated_snapshot(tmp_path / "gone")


def test_plugin_code_must_return_the_contracts_types() -> None:
    assert check_type(1.5, float, "loss() must return") == 1.5
    with pytest.raises(TypeError, match=r"loss\(\) .*float, got str"):
        check_type("1.5", float, "loss() must return")


def test_decisions_that_came_true_are_taken_in_once(tmp_path: Path, collection: Collect) -> None:
    log = DecisionLog(tmp_path / "agent" / "decisions")
    transition = {
        **{"group": "task", "observation": {"x": 2.0}, "action": {}, "reward": 1.0},
        **{"next_observation": {}, "terminated": False, "propensity": 0.5, "info": {}},
    }
    log.append([{"kind": "transition", "id": "t1", "transition": transition}])
    log.append([{"kind": "transition", "id": "t2", "transition": {"group": "lacks the rest"}}])
    folder = tmp_path / "agent" / "replay"
    with capture_logs() as logs:
        taken = collection(Agent(3))
        taken.snapshot(folder)
    assert [line["event"] for line in logs] == ["decisions_taken_in", "decision_skipped"]
    (tmp_path / "run" / "snapshot.json").unlink()
    later = collection(Agent(1))
    recorded = list(later.read(folder, later.snapshot(folder)))
    assert len(recorded) == 5
    assert [row.propensity for row in recorded if row.group == "task"] == [0.5]


def test_decisions_that_cannot_be_read_cost_this_run_them_alone(
    tmp_path: Path, collection: Collect
) -> None:
    log = DecisionLog(tmp_path / "agent" / "decisions")
    log.append([{"kind": "decision", "id": "d1"}])
    (log.folder / "taken-in.json").write_text("{")
    folder = tmp_path / "agent" / "replay"
    with capture_logs() as logs:
        made = collection(Agent(2))
        assert len(made.read(folder, made.snapshot(folder))) == 2
    assert [line["event"] for line in logs] == ["decisions_not_taken_in"]


def test_closed_segments_are_compacted_after_a_run(collection: Collect, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="installed with the extra dev")
    folder = tmp_path / "replay"
    text = "x" * (1 << 21)
    for number in range(20):
        with closing(ReplayBuffer(folder)) as buffer:
            observation = {"text": text, "number": float(number)}
            buffer.append(Transition(group="g", observation=observation, action={}))
    before = list(iter(ReplayBuffer(folder).read()))
    with capture_logs() as logs:
        collection(Agent(0)).compact(folder, lambda: None)
        collection(Agent(0)).compact(folder, lambda: None)
    (entry,) = logs
    assert entry["event"] == "replay_buffer_compacted"
    assert entry["segments"] == 20
    assert entry["bytes_after"] < entry["bytes_before"] / 20
    assert [path.suffix for path in folder.iterdir()] == [".parquet"]
    assert list(iter(ReplayBuffer(folder).read())) == before


def test_a_compaction_that_fails_is_a_warning(collection: Collect, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="installed with the extra dev")
    with closing(ReplayBuffer(tmp_path / "replay")) as buffer:
        observation = {"text": "x" * (1 << 26)}
        buffer.append(Transition(group="g", observation=observation, action={}))

    def poll() -> None:
        raise OSError("the disk is full")

    with capture_logs() as logs:
        collection(Agent(0)).compact(tmp_path / "replay", poll)
    (entry,) = logs
    assert entry["event"] == "replay_buffer_not_compacted"
    assert entry["error"] == "the disk is full"
    assert [path.suffix for path in (tmp_path / "replay").iterdir()] == [".jsonl"]
