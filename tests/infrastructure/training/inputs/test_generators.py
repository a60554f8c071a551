from __future__ import annotations

import random

import numpy as np
import torch

from infrastructure.training.inputs import (
    preserved_generators,
    random_state,
    restore_random_state,
    same_random_state,
    seed_generators,
)

CPU = torch.device("cpu")


def draw() -> tuple[float, float]:
    return random.random(), torch.rand(()).item()


def test_a_restored_state_draws_the_same_numbers() -> None:
    state = random_state(CPU)
    first = draw()
    restore_random_state(state, CPU)
    assert draw() == first


def test_a_seed_decides_pythons_and_torchs_numbers() -> None:
    seed_generators(3)
    first = draw()
    seed_generators(3)
    assert draw() == first


def test_a_draw_from_either_generator_changes_the_state() -> None:
    state = random_state(CPU)
    assert same_random_state(state, random_state(CPU))
    random.random()
    assert not same_random_state(state, random_state(CPU))
    state = random_state(CPU)
    torch.rand(())
    assert not same_random_state(state, random_state(CPU))


def test_preserved_generators_are_as_before_even_after_an_error() -> None:
    state, numpy_state = random_state(CPU), np.random.get_state()[1].copy()
    try:
        with preserved_generators(CPU):
            draw()
            np.random.rand()
            raise KeyError
    except KeyError:
        pass
    assert same_random_state(state, random_state(CPU))
    assert (np.random.get_state()[1] == numpy_state).all()
