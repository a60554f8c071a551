from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from infrastructure.fleet import random_states
from infrastructure.fleet.random_states import DrawDetector

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
