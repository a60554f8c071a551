from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from infrastructure.training.rounds import batches_of_each_kind, first_batches
from tests.infrastructure.training.bandit import PER_ROUND, Bandit

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


def test_a_policy_generates_its_first_batches_in_fp32_and_stays_as_it_is():
    bandit = Bandit(warm_up_rounds=0)
    before, generators = copy.deepcopy(bandit.model.state_dict()), torch.get_rng_state()
    first = first_batches(bandit.job, CPU, PER_ROUND + 1)
    again = first_batches(bandit.job, CPU, PER_ROUND + 1)
    assert len(first) == PER_ROUND + 1
    assert all(
        torch.equal(a[name], b[name]) for a, b in zip(first, again, strict=True) for name in a
    )
    assert all(
        torch.equal(value, before[name]) for name, value in bandit.model.state_dict().items()
    )
    assert bandit.model.training
    assert torch.equal(torch.get_rng_state(), generators)


def test_a_policy_is_checked_with_a_batch_of_its_warm_up_and_one_that_it_generated():
    bandit = Bandit()
    batches = batches_of_each_kind(bandit.job, copy.deepcopy(bandit.model), CPU)
    assert ["advantage" in batch for batch in batches] == [False, True]
    empty = dataclasses.replace(bandit.job, batches=lambda *_: [])
    with pytest.raises(ValueError, match="rounds 0 and 1"):
        batches_of_each_kind(empty, bandit.model, CPU)
