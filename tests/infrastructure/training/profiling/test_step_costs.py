from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from infrastructure.agent_contract import TrainingJob
from infrastructure.training import FP16TrainingConfig, Precision
from infrastructure.training.profiling import measure_steps
from infrastructure.training.profiling.product_flops import ProductFlops

CPU = torch.device("cpu")


def test_products_are_counted_in_the_type_they_are_computed_in() -> None:
    model, x = nn.Linear(8, 4), torch.randn(16, 8)
    with ProductFlops() as counted:
        model(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(x).float().sum().backward()
    one = 2 * 16 * 8 * 4
    assert counted.flops == {"float32": one, "bfloat16": 2 * one}  # forward, weight's gradient


@pytest.mark.process
def test_the_step_is_measured_in_every_precision(make_job: Callable[..., TrainingJob]) -> None:
    job = make_job()
    before = [each.clone() for each in job.model.parameters()]
    fp32, bf16 = measure_steps(
        job, CPU, FP16TrainingConfig(), [Precision.BF16], budget_seconds=0.01
    )
    assert (fp32.precision, bf16.precision) == ("fp32", "bf16")
    assert fp32.ratio is None
    assert (bf16.ratio or 0.0) > 0.0
    assert set(fp32.product_flops) == {"float32"}
    assert bf16.product_flops["bfloat16"] > 0.0
    assert bf16.cast_share > 0.0
    assert fp32.busy_share is None
    assert any(each.name.startswith("aten::") for each in fp32.operators)
    assert [each.seconds for each in fp32.operators] == sorted(
        (each.seconds for each in fp32.operators), reverse=True
    )
    assert 0.0 < (fp32.fixed_share or 0.0) <= 1.0
    assert all(map(torch.equal, before, job.model.parameters()))


def test_a_job_that_cannot_be_cut_to_two_rows(make_job: Callable[..., TrainingJob]) -> None:
    job = make_job()

    def needs_rows(forward: object, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if len(next(iter(batch.values()))) < 3:
            raise ValueError("three rows are needed")
        return job.loss(forward, batch)

    (fp32,) = measure_steps(
        replace(job, loss=needs_rows), CPU, FP16TrainingConfig(), [], budget_seconds=0.01
    )
    assert fp32.fixed_share is None


def test_an_optimizer_of_other_parameters_is_refused(
    make_job: Callable[..., TrainingJob],
) -> None:
    job = make_job()
    own = torch.optim.AdamW(job.model.parameters(), fused=True)
    with pytest.raises(ValueError, match="other parameters"):
        measure_steps(
            replace(job, optimizer=lambda _parameters: own), CPU, FP16TrainingConfig(), []
        )
