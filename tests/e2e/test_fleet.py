"""Configured agents whose due runs train in one worker, and the same runs one after the other."""

import json
import random
import shutil
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from genesis_fp16.domain.attempt import Attempt
from genesis_fp16.domain.run import Run, RunState
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from infrastructure.events import Event, EventTail

pytestmark = pytest.mark.e2e

AGENTS = ("north", "south", "west")
DEFINITION = """
schedule = "every 1d"

[source]
path = "records/{agent}"

[spec.observation]
x = {{ type = "box" }}

[spec.targets]
y = {{ type = "box" }}

[training]
steps = 1500
epochs = 2
batch_size = 16
"""


def prepare(daemon) -> None:
    """Give three agents their definitions and records."""
    daemon.configure(
        GENESIS_CPU_HALF="true",
        GENESIS_PRECISION="bf16",
        GENESIS_AGENTS__QUICK__ENABLED="false",
        GENESIS_BASELINE_EVERY_RUNS=0,
        GENESIS_CHECKPOINT_INTERVAL_SECONDS=0.1,
    )
    (daemon.home / "agents.d").mkdir(parents=True)
    for seed, agent in enumerate(AGENTS):
        (daemon.home / "agents.d" / f"{agent}.toml").write_text(DEFINITION.format(agent=agent))
        records = daemon.home / "records" / agent
        records.mkdir(parents=True)
        draw = random.Random(seed)
        with (records / "all.jsonl").open("w") as file:
            for number in range(400):
                x = draw.random()
                line = {"id": str(number), "group": f"g{number // 5}", "observation": {"x": x}}
                file.write(json.dumps({**line, "next_observation": {"y": x * x}}) + "\n")


def give_what_is_known(home: Path, other: Path) -> None:
    """Copy what probes and workers have found out about the agents: all are then due at once."""
    shutil.copy(home / "plugins.json", other)
    for agent in AGENTS:
        (other / "agents" / agent).mkdir(parents=True)
        shutil.copy(home / "agents" / agent / "last-training.json", other / "agents" / agent)


def start_with_a_run_of_each(daemon) -> None:
    """The daemon knows all agents from its last time, so it starts their runs in one round."""
    with closing(Store.open(Settings(home=daemon.home))) as store:
        for agent in AGENTS:
            store.enqueue(agent, first_seed=0)
    daemon.start()


def runs_of(daemon, number: int) -> dict[str, Run]:
    """The run of this number of each agent that has one."""
    with closing(Store.open(Settings(home=daemon.home))) as store:
        return {run.agent: run for run in store.runs(limit=1000) if run.number == number}


def attempts_of(daemon, number: int, attempt: int) -> dict[str, Attempt]:
    """An attempt of the run of this number, by agent."""
    runs = runs_of(daemon, number)
    with closing(Store.open(Settings(home=daemon.home))) as store:
        return {agent: store.attempts(run.id)[attempt - 1] for agent, run in runs.items()}


def wait_for_runs(daemon, number: int, state: RunState) -> dict[str, Run]:
    """Wait until the run of this number of every agent is in *state*."""
    daemon.wait_for(
        lambda: [run.state for run in runs_of(daemon, number).values()] == [state] * len(AGENTS),
        f"to have every run {number} {state}",
    )
    return runs_of(daemon, number)


def workers(attempts: dict[str, Attempt]) -> set[int | None]:
    return {attempt.pid for attempt in attempts.values()}


def learned(daemon, runs: dict[str, Run]) -> dict[str, object]:
    """Weights of the best epoch, and metrics, by agent."""
    found: dict[str, object] = {}
    for agent, run in runs.items():
        best = daemon.home / "runs" / run.id / "best-epoch.pt"
        found[agent] = (best.read_bytes(), run.metrics, run.steps, run.published)
    return found


def events_of(daemon, run: Run, attempt: int, kind: str) -> list[Event]:
    folder = daemon.home / "runs" / run.id / "attempts" / str(attempt)
    return [event for event in EventTail(folder / "events.ndjson").read() if event.kind == kind]


def test_a_fleet_gives_what_its_runs_give_alone_and_survives_its_death(
    make_daemon, tmp_path: Path
) -> None:
    one_by_one, fleet = make_daemon(tmp_path / "alone"), make_daemon(tmp_path / "fleet")
    for daemon in (one_by_one, fleet):
        prepare(daemon)
    one_by_one.start()
    alone = wait_for_runs(one_by_one, 1, RunState.SUCCEEDED)
    one_by_one.stop()
    assert len(workers(attempts_of(one_by_one, 1, 1))) == len(AGENTS)

    give_what_is_known(one_by_one.home, fleet.home)
    fleet.configure(GENESIS_FLEET="auto")
    fleet.start()
    together = wait_for_runs(fleet, 1, RunState.SUCCEEDED)
    assert len(workers(attempts_of(fleet, 1, 1))) == 1
    assert learned(fleet, together) == learned(one_by_one, alone)
    shown = fleet.cli("runs", "show", together["west"].id)
    assert "2 other trainings" in shown.stdout
    fleet.stop()

    start_with_a_run_of_each(fleet)
    runs = wait_for_runs(fleet, 2, RunState.RUNNING)
    fleet.wait_for(
        lambda: all(events_of(fleet, run, 1, "step_stats") for run in runs.values()),
        "to train every run",
    )
    [pid] = workers(attempts_of(fleet, 2, 1))
    worker = psutil.Process(pid)
    worker.suspend()  # else the runs could end before the command
    set_fp32 = ("precision", "set", "fp32", "--agent", "south", "--reason", "a test")
    assert fleet.cli(*set_fp32).returncode == 0
    worker.resume()
    fleet.wait_for(
        lambda: (
            len(events_of(fleet, runs["south"], 1, "precision_changed")) == 2
            and all(events_of(fleet, run, 1, "checkpoint_saved") for run in runs.values())
        ),
        "to put south in FP32",
    )
    worker.kill()
    ended = wait_for_runs(fleet, 2, RunState.SUCCEEDED)
    assert len(workers(attempts_of(fleet, 2, 2))) == len(AGENTS), "each goes on alone"
    for agent, run in ended.items():
        assert run.failures == 0
        changes = events_of(fleet, run, 1, "precision_changed")
        effective = [change.state.effective for change in changes]
        assert effective == (["bf16", "fp32"] if agent == "south" else ["bf16"])
        assert len(events_of(fleet, run, 2, "resumed")) == 1
        assert len(events_of(fleet, run, 2, "published")) == 1
    endings = {attempt.ending for attempt in attempts_of(fleet, 2, 1).values()}
    assert endings == {"with its fleet: killed by signal 9"}
