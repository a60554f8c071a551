from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from agents.replay_agent import ReplayAgent
from infrastructure.agent_contract import Evaluation, EvaluationReport, RunContext, Schedule
from infrastructure.agent_contract.agent import InsufficientDataError
from infrastructure.agent_contract.run_context import Budget
from infrastructure.trajectories import ReplayBuffer
from infrastructure.trajectories.record_source import DefinitionError
from infrastructure.trajectories.record_source.source import POSITIONS_FILE

DEFINITION = """
schedule = "every 30m"

[source]
path = "records/desk"

[spec.observation]
x = { type = "box" }

[spec.targets]
y = { type = "box" }

[training]
steps = 20
epochs = 2
patience = 1
recent_transitions = 500
recent_weight = 3
"""


@pytest.fixture
def definition(tmp_path: Path) -> Path:
    path = tmp_path / "agents.d" / "desk.toml"
    path.parent.mkdir()
    path.write_text(DEFINITION)
    (tmp_path / "records" / "desk").mkdir(parents=True)
    return path


class Reports(list[dict[str, object]]):
    def __call__(self, done: int, total: int | None = None, **more: object) -> None:
        self.append({"done": done, "total": total, **more})


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    home = tmp_path
    for folder in ("agents/desk", "runs/1"):
        (home / folder).mkdir(parents=True)
    return RunContext(
        run_id="1",
        attempt=1,
        agent="desk",
        device="cpu",
        seed=0,
        agent_folder=home / "agents" / "desk",
        run_folder=home / "runs" / "1",
        budget=Budget(seconds=60.0, transitions=10_000),
        settings=None,
        logger=structlog.get_logger(),
        report_progress=Reports(),
    )


def write(home: Path, groups: range) -> None:
    with (home / "records" / "desk" / "a.jsonl").open("a") as file:
        for group in groups:
            for step in range(5):
                x = (group * 7 + step) % 11 / 11
                body = {"group": f"g{group}", "observation": {"x": x}, "id": f"{group}-{step}"}
                file.write(json.dumps({**body, "next_observation": {"y": 2 * x}}) + "\n")


def collect(agent: ReplayAgent, context: RunContext) -> ReplayBuffer:
    buffer = ReplayBuffer(context.agent_folder / "replay")
    for transition in agent.collect(context):
        buffer.append(transition)
    buffer.close()
    return buffer


def test_records_of_a_folder_become_a_training_job(
    definition: Path, context: RunContext, tmp_path: Path
) -> None:
    agent = ReplayAgent(definition)
    assert (agent.name, agent.schedule()) == ("desk", Schedule(every_seconds=1800.0))
    assert (agent.training_steps, agent.epochs, agent.batch_size) == (20, 2, 256)
    assert (agent.recent_transitions, agent.recent_weight) == (500, 3)
    assert agent.patience == 1
    write(tmp_path, range(4))
    with structlog.testing.capture_logs() as logs:
        buffer = collect(agent, context)
    [read] = [line for line in logs if line["event"] == "records_read"]
    assert (read["records"], read["refused"]) == (20, 0)
    with pytest.raises(InsufficientDataError):
        agent.build_job(context, buffer.read())
    assert (context.agent_folder / POSITIONS_FILE).exists()  # also though it could not train
    write(tmp_path, range(4, 80))
    buffer = collect(agent, context)
    job = agent.build_job(context, buffer.read())
    assert job.patience == 1
    assert job.epochs == 2
    assert len(buffer.read()) == 400


def test_without_a_record_the_error_says_what_was_looked_for_and_where(
    definition: Path, context: RunContext, tmp_path: Path
) -> None:
    folder = tmp_path / "records" / "desk"
    line = {"group": "g", "observation": {"x": 1.0}, "agent": "other"}
    (folder / "a.jsonl").write_text(json.dumps(line) + "\n[]\n")
    agent = ReplayAgent(definition)
    buffer = collect(agent, context)
    with pytest.raises(InsufficientDataError) as lack:
        agent.build_job(context, buffer.read())
    assert lack.value.got == 0
    expected = f"looked for records that name desk in {folder} (*.jsonl): 1 files, 0 new records"
    assert expected in str(lack.value)
    assert "others name other (1), 1 lines cannot be read" in str(lack.value)


def test_without_actions_the_reason_says_that_the_model_cannot_rank(
    definition: Path, context: RunContext, tmp_path: Path
) -> None:
    write(tmp_path, range(80))
    agent = ReplayAgent(definition)
    job = agent.build_job(context, collect(agent, context).read())
    evaluation = Evaluation(metrics={"x": 0.0}, primary="x", higher_is_better=True)
    report = EvaluationReport(evaluation=evaluation, steps=0, epochs=1)
    reason = agent.publish(context, job.model, report).reason
    assert reason.endswith("the model can predict, but not rank options")


def test_a_run_keeps_the_fields_that_it_began_with(
    definition: Path, context: RunContext, tmp_path: Path
) -> None:
    write(tmp_path, range(80))
    agent = ReplayAgent(definition)
    transitions = collect(agent, context).read()
    agent.build_job(context, transitions)
    definition.write_text(DEFINITION.replace("x = {", "gone = {"))
    resumed = ReplayAgent(definition)
    assert list(resumed.spec().observation) == ["gone"]
    with structlog.testing.capture_logs() as logs:
        resumed.build_job(context, transitions)
    assert "definition_changed" in [line["event"] for line in logs]
    assert list(resumed.spec().observation) == ["x"]


def test_problems_of_records_are_logged(
    definition: Path, context: RunContext, tmp_path: Path
) -> None:
    (tmp_path / "records" / "desk" / "a.jsonl").write_text('{"group": "g"}\n')
    with structlog.testing.capture_logs() as logs:
        collect(ReplayAgent(definition), context)
    [problem] = [line["problem"] for line in logs if line["event"] == "records_incomplete"]
    assert "'observation' is missing (first: a.jsonl line 1)" in problem


def test_an_agent_may_be_fed_through_its_replay_buffer(
    definition: Path, context: RunContext
) -> None:
    definition.write_text(DEFINITION.replace('path = "records/desk"', 'kind = "buffer"'))
    agent = ReplayAgent(definition)
    transitions: Iterator[object] = agent.collect(context)
    assert list(transitions) == []


def test_an_agent_needs_its_file(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"agents\.d"):
        ReplayAgent()
    with pytest.raises(DefinitionError, match=r"desk\.toml .*restore"):
        ReplayAgent(tmp_path / "agents.d" / "desk.toml")
