from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from infrastructure.fleet import random_states
from infrastructure.fleet.random_states import DrawDetector, RandomStates

DRAWS: dict[str, Callable[[], object]] = {
    "torch": lambda: torch.rand(2).tolist(),
    "Python": random.random,
    "Python's normal": lambda: random.gauss(0.0, 1.0),  # every second one is kept apart
    "NumPy": np.random.rand,
    "NumPy's normal": np.random.randn,
}


def draw_all(times: int) -> list[object]:
    return [draw() for _ in range(times) for draw in DRAWS.values()]


@pytest.fixture(params=["memory", "state"])
def _found_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's draws are found by its memory, or without it where that lies elsewhere."""
    if request.param == "state":
        monkeypatch.setattr(random_states, "_PYTHON_TWISTER", None)


@pytest.mark.usefixtures("_found_by")
def test_owners_that_take_turns_draw_what_each_would_alone() -> None:
    caller = RandomStates()
    owners, expected, drawn = [], [], [[], []]
    for seed in (1, 2):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        owners.append(RandomStates.copied())
        expected.append(draw_all(6))
    caller.enter()
    for _ in range(3):
        with caller.kept():
            for number, owner in enumerate(owners):
                with owner.in_force():
                    drawn[number] += draw_all(1)
        with owners[0].in_force():
            drawn[0] += draw_all(1)
        with owners[1].in_force():
            drawn[1] += draw_all(1)
    assert drawn == expected


def test_the_caller_keeps_its_states() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    caller = RandomStates()
    with caller.kept(), RandomStates.copied().in_force():
        expected = draw_all(2)
    with caller.kept(), RandomStates.copied().in_force():
        draw_all(3)
    assert draw_all(2) == expected


def test_another_kind_of_numpy_generator_is_kept_too() -> None:
    caller = RandomStates()
    with caller.kept():
        np.random.set_bit_generator(np.random.PCG64(1))
        owner = RandomStates.copied()
        expected = draw_all(3)[3::5]
    with caller.kept(), owner.in_force():
        found = draw_all(1)[3::5]
    with caller.kept(), owner.in_force():
        found += draw_all(2)[3::5]
    assert found == expected


@pytest.mark.usefixtures("_found_by")
@pytest.mark.parametrize("before", [0, 1], ids=["", "with a normal number kept"])
@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_is_found_and_undone(name: str, before: int) -> None:
    detector = DrawDetector()
    draw_all(before)
    for _ in range(2):
        detector.begin()
        assert not detector.found()
        drawn = DRAWS[name]()
        assert detector.found()
        assert not detector.found()
        assert DRAWS[name]() == drawn


def test_a_draw_from_another_kind_of_numpy_generator_is_undone() -> None:
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        detector = DrawDetector()
        detector.begin()
        assert not detector.found()
        drawn = np.random.rand()
        assert detector.found()
        assert np.random.rand() == drawn
    finally:
        np.random.set_bit_generator(before)
