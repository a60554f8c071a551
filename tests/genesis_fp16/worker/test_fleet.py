"""Several attempts in this process, compared with each of them alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from genesis_fp16.domain.run_spec import RunSpec, TrainerOptions
from genesis_fp16.plugins.agent_folder import read_last_training
from genesis_fp16.worker.attempt_runner import AttemptRunner
from genesis_fp16.worker.channel import CommandInbox
from genesis_fp16.worker.fleet import Commands, HostedAttempt, run_attempts
from genesis_fp16.worker.outcome import run_attempt
from infrastructure.events import EventTail, EventWriter, PrecisionState, SetPrecision
from infrastructure.events.command import AttemptCommand, Stop
from infrastructure.events.event import Event

FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")
FP32 = PrecisionState(requested="fp16", effective="fp32", reason="operator")
Specs = Callable[..., list[RunSpec]]


@pytest.fixture
def specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Specs]:
    """Specifications of attempts of the agents a, b and c in a home of this name."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    threads = torch.get_num_threads()

    def make(home: str, **settings: dict[str, object]) -> list[RunSpec]:
        made = []
        for seed, agent in enumerate("abc"):
            run = tmp_path / home / "runs" / agent
            run.mkdir(parents=True)
            spec = RunSpec(
                run_id=agent,
                attempt=1,
                incarnation=f"incarnation-{agent}",
                agent=agent,
                entry_point=f"fleet_agents:{agent.upper()}",
                agent_folder=tmp_path / home / "agents" / agent,
                run_folder=run,
                attempt_folder=run,
                seed=seed,
                device="cpu",
                threads=1,
                precision=FP16,
                trainer=TrainerOptions(cpu_half=True),
                budget_seconds=30.0,
                budget_transitions=100,
                stats_interval_steps=5,
                baseline_interval_steps=10,
                telemetry_interval_steps=10,
                checkpoint_interval_seconds=60.0,
                keep_checkpoints=1,
                settings=settings.get(agent, {}),
            )
            made.append(spec)
        return made

    yield make
    torch.set_num_threads(threads)


def alone(spec: RunSpec) -> None:
    torch.manual_seed(0)
    with EventWriter(spec.events_path) as events:
        events(run_attempt(AttemptRunner(spec, events, CommandInbox(events)), spec))


def together(specs: list[RunSpec], *lines: AttemptCommand) -> None:
    torch.manual_seed(0)
    attempts = [HostedAttempt(spec, len(specs)) for spec in specs]
    commands = Commands(attempts)
    for line in lines:
        commands.receive(line.model_dump_json().encode())
    run_attempts(attempts)


def events(spec: RunSpec, kind: str) -> list[Event]:
    return [event for event in EventTail(spec.events_path).read() if event.kind == kind]


def outcomes(specs: list[RunSpec]) -> list[str]:
    return [event.outcome for spec in specs for event in events(spec, "finished")]


def learned(spec: RunSpec) -> dict[str, object]:
    """What depends on the bits of the training, and on nothing else, such as time."""
    stats = events(spec, "step_stats")
    model = torch.load(spec.agent_folder / "model.pt", weights_only=True)
    return {
        "steps": stats[-1].step,
        "overflows": sum(each.overflow for each in stats),
        "metrics": [event.metrics for event in events(spec, "evaluated")][-1],
        "published": [event.metrics for event in events(spec, "published")],
        "weights": {name: tensor.tolist() for name, tensor in model.items()},
    }


@pytest.mark.process  # trains six models
def test_each_attempt_gives_the_bits_and_events_of_itself_alone(specs: Specs) -> None:
    settings = {"a": {"epochs": 1}, "c": {"epochs": 3}}
    one_by_one, fleet = specs("alone", **settings), specs("fleet", **settings)
    for spec in one_by_one:
        alone(spec)
    together(fleet)
    assert outcomes(fleet) == outcomes(one_by_one) == ["done"] * 3
    assert [learned(spec) for spec in fleet] == [learned(spec) for spec in one_by_one]
    assert [learned(spec)["steps"] for spec in fleet] == [20, 40, 60]
    for spec in fleet:
        [notice, *_] = [n for n in events(spec, "notice") if n.event == "fleet_changed"]
        assert notice.fields["with_others"] == "2"
    shapes = {read_last_training(spec.agent_folder).shape for spec in (*fleet, *one_by_one)}
    assert len(shapes) == 1
    assert "" not in shapes


def test_an_error_ends_its_attempt_alone(specs: Specs) -> None:
    fleet = specs("fleet", a={"fault": "raises"}, b={"fault": "exits"})
    together(fleet)
    assert outcomes(fleet) == ["failed", "failed", "done"]
    errors = [event.error for spec in fleet for event in events(spec, "finished")]
    assert "a failed while training: RuntimeError: the data is gone" in errors[0]
    assert "b failed while collecting: called sys.exit(3)" in errors[1]


def test_an_agent_that_cannot_be_loaded_leaves_the_others_as_they_are(specs: Specs) -> None:
    fleet = specs("fleet")
    fleet[1] = fleet[1].model_copy(update={"entry_point": "fleet_agents:Missing"})
    together(fleet)
    assert outcomes(fleet) == ["done", "misconfigured", "done"]


def test_a_command_reaches_the_attempt_that_it_names(specs: Specs) -> None:
    fleet = specs("fleet")
    together(
        fleet,
        AttemptCommand(incarnation="incarnation-a", command=Stop(reason="cancel")),
        AttemptCommand(incarnation="incarnation-b", command=SetPrecision(state=FP32)),
        AttemptCommand(incarnation="of an attempt that has ended", command=Stop(reason="late")),
    )
    assert outcomes(fleet) == ["stopped", "done", "done"]
    last = [events(spec, "precision_changed")[-1].state.effective for spec in fleet[1:]]
    assert last == ["fp32", "fp16"]


def test_what_is_no_command_is_told(specs: Specs) -> None:
    attempts = [HostedAttempt(spec, 3) for spec in specs("fleet")]
    Commands(attempts).receive(b"nonsense\n")
    found = [events(each.spec, "notice")[0].event for each in attempts]
    assert found == ["command_rejected"] * 3
