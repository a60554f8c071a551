"""Which due runs share a worker."""

from collections.abc import Callable
from pathlib import Path

import pytest

from genesis_fp16.domain.last_training import LastTraining
from genesis_fp16.domain.run import Run, RunState
from genesis_fp16.plugins.agent_folder import write_last_training
from genesis_fp16.runs.fleets import LONGEST_COLLECT_SECONDS, MOST_MEMBERS, share_workers
from genesis_fp16.settings import AgentSettings, Settings

Due = Callable[..., Run]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, fleet="auto")


@pytest.fixture
def due(tmp_path: Path) -> Due:
    """A due run of an agent whose last training had this shape; an empty one leaves no trace."""

    def make(agent: str, shape: str = "", **changes: float) -> Run:
        if shape:
            folder = tmp_path / "agents" / agent
            folder.mkdir(parents=True)
            seconds = {"collect_seconds": 1.0, "train_seconds": 1.0} | changes
            write_last_training(folder, LastTraining(shape=shape, **seconds))
        return Run(
            id=f"run-{agent}",
            agent=agent,
            number=1,
            trigger="schedule",
            state=RunState.QUEUED,
            seed=0,
            due_at=0.0,
            created_at=0.0,
            available_at=0.0,
        )

    return make


def names(workers: list[list[Run]]) -> list[str]:
    return ["".join(run.agent for run in runs) for runs in workers]


def test_runs_of_one_shape_share_a_worker(due: Due, settings: Settings) -> None:
    runs = [due("a", "1f"), due("b", "2e"), due("c", "1f"), due("d"), due("e", "2e")]
    assert names(share_workers(runs, 1, settings)) == ["ac", "be", "d"]
    assert names(share_workers(runs, 4, settings)) == ["a", "c", "be", "d"]
    assert names(share_workers(runs, 5, settings)) == list("abcde")
    off = settings.model_copy(update={"fleet": "off"})
    assert names(share_workers(runs, 1, off)) == list("abcde")


def test_parallel_slots_are_used_before_a_fleet_grows(due: Due, settings: Settings) -> None:
    runs = [due(agent, "1f") for agent in "abcdefg"]
    assert names(share_workers(runs, 3, settings)) == ["abc", "de", "fg"]


def test_who_trains_alone(due: Due, settings: Settings) -> None:
    slow = due("s", "1f", collect_seconds=LONGEST_COLLECT_SECONDS + 1)
    retried = due("r", "1f")
    retried = Run(**{name: getattr(retried, name) for name in Run.__slots__} | {"started_at": 1.0})
    ranks = settings.model_copy(update={"agents": {"p": AgentSettings(processes_per_run=2)}})
    runs = [due("a", "1f"), slow, retried, due("p", "1f"), due("b", "1f")]
    assert names(share_workers(runs, 1, ranks)) == ["ab", "s", "r", "p"]


def test_a_fleet_is_bounded_in_members_and_in_time(due: Due, settings: Settings) -> None:
    many = [due(f"m{i}", "1f") for i in range(MOST_MEMBERS + 2)]
    assert [len(runs) for runs in share_workers(many, 1, settings)] == [MOST_MEMBERS, 2]
    half = settings.run_timeout_seconds / 2
    long = [due(f"l{i}", "2e", train_seconds=half / 3) for i in range(3)]
    assert [len(runs) for runs in share_workers(long, 1, settings)] == [2, 1]
