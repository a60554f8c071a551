"""The example says what it does, in the contract's terms, on the real environment."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import structlog

from genesis_fp16.testing import check_agent
from infrastructure.agent_contract import RunContext, Transition
from infrastructure.agent_contract.run_context import Budget
from infrastructure.world_model import WorldModel
from tests.examples.examples import load

STEPS_PER_EPISODE = 200


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return load("pendulum_agent")


@pytest.fixture
def make_context(tmp_path: Path) -> Callable[..., RunContext]:
    def make(*, run_id: str = "run-1", seed: int = 0) -> RunContext:
        return RunContext(
            run_id=run_id,
            attempt=1,
            agent="pendulum",
            device="cpu",
            seed=seed,
            agent_folder=tmp_path / "agent",
            run_folder=tmp_path / "run",
            budget=Budget(seconds=60, transitions=10_000),
            settings=None,
            logger=structlog.get_logger(),
            report_progress=lambda *_, **__: None,
        )

    return make


@pytest.fixture
def episodes(module: ModuleType, make_context: Callable) -> Callable[..., list[Transition]]:
    """The first transitions of a run."""

    def collect(count: int = 2, **context: object) -> list[Transition]:
        transitions = module.PendulumAgent().collect(make_context(**context))
        return list(itertools.islice(transitions, count * STEPS_PER_EPISODE))

    return collect


def test_transitions_are_the_pendulum_s(episodes: Callable) -> None:
    """Each obeys Pendulum-v1's own equation of motion; nothing here is made up."""
    for transition in episodes(2):
        cosine, sine, speed = transition.observation["state"]
        [torque] = transition.action["torque"]
        following = transition.next_observation["state"]
        assert math.hypot(cosine, sine) == pytest.approx(1, abs=1e-4)
        expected = max(-8.0, min(8.0, speed + (15 * sine + 3 * torque) * 0.05))
        assert following[2] == pytest.approx(expected, abs=1e-3)
        angle = math.atan2(sine, cosine)
        cost = angle**2 + 0.1 * speed**2 + 0.001 * torque**2
        assert transition.reward == pytest.approx(-cost, abs=1e-2)


def test_an_episode_is_a_group_and_a_chain(episodes: Callable) -> None:
    transitions = episodes(3)
    groups = [transition.group for transition in transitions]
    assert [len(list(g)) for _, g in itertools.groupby(groups)] == [STEPS_PER_EPISODE] * 3
    for before, after in itertools.pairwise(transitions):
        if before.group == after.group:
            assert before.next_observation["state"] == after.observation["state"]


def test_a_seed_repeats_a_run_and_another_run_has_other_groups(episodes: Callable) -> None:
    first, again = episodes(1, seed=3), episodes(1, seed=3)
    assert first == again
    assert first[0].observation != episodes(1, seed=4)[0].observation
    assert first[0].group != episodes(1, seed=3, run_id="run-2")[0].group


def test_torques_cover_the_range(episodes: Callable) -> None:
    torques = [t.action["torque"][0] for t in episodes(5)]
    assert min(torques) == pytest.approx(-2)
    assert max(torques) == pytest.approx(2)


def test_a_published_model_swings_up_by_plans(
    module: ModuleType, make_context: Callable, episodes: Callable
) -> None:
    agent, first = module.PendulumAgent(), episodes(50)
    model = WorldModel(agent.spec(), members=3, hidden=32)
    model.fit(first, epochs=15, batch_size=64, device="cpu", precision="fp32")
    model.save(agent.published_folder(make_context()))
    planned = episodes(1, run_id="run-2")
    assert sum(row.reward for row in planned) > -500  # at random: some -1,200
    assert {row.group for row in planned} == {"run-2/0"}
    again = itertools.islice(agent.collect(make_context(run_id="run-2")), 20)
    assert list(again) == planned[:20]


@pytest.mark.process
def test_it_passes_the_conformance_kit(module: ModuleType, tmp_path: Path) -> None:
    check_agent(module.PendulumAgent, tmp_path)
