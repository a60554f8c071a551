"""The dispatcher that tests use, and how they wait for it."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from genesis_fp16.domain.run import Run
from genesis_fp16.settings import Settings
from tests.genesis_fp16.runs.dispatcher.world import World
from tests.preloaded import STANDIN


@pytest.fixture
def world(database: Settings, forked: None, monkeypatch: pytest.MonkeyPatch, until):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    world = World(database, (sys.executable, "-P", "-m", STANDIN))
    yield world
    until(world.end)
    world.close()


@pytest.fixture
def ticking(world: World, until) -> Callable[[Callable[[], object]], None]:
    """Run rounds until a condition holds."""

    def tick_until(holds: Callable[[], object]) -> None:
        def step() -> object:
            world.tick()
            return holds()

        until(step)

    return tick_until


@pytest.fixture
def finished(world: World, ticking) -> Callable[[str], Run]:
    def finish(run_id: str) -> Run:
        ticking(lambda: world.run(run_id).finished)
        return world.run(run_id)

    return finish
