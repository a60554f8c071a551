from __future__ import annotations

import dataclasses

import pytest
import torch

from infrastructure.training.inputs import first_batches

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
