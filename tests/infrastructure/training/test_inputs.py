from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import torch

from infrastructure.training.inputs import (
    first_batches,
    preserved_generators,
    random_state,
    restore_random_state,
    same_random_state,
    seed_generators,
)

CPU = torch.device("cpu")


def test_no_more_batches_are_drawn_than_wanted_and_the_generator_is_closed(make_job) -> None:
    job, drawn = make_job(), []

    def batches(_epoch):
        try:
            for batch in job.batches(0):
                drawn.append("batch")
                yield batch
        finally:
            drawn.append("closed")

    assert len(first_batches(dataclasses.replace(job, batches=batches), CPU, 2)) == 2
    assert drawn == ["batch", "batch", "closed"]


def test_a_short_epoch_gives_fewer_batches_and_an_empty_one_is_refused(make_job) -> None:
    assert len(first_batches(make_job(batches_per_epoch=3), CPU, 4)) == 3
    with pytest.raises(ValueError, match="no batches"):
        first_batches(make_job(batches_per_epoch=0), CPU)


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
