from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from infrastructure.training.diagnostics import RepeatedPasses
from infrastructure.training.diagnostics.overflow_cause import Diagnosis, diagnose_overflow
from infrastructure.training.precision import Precision
from tests.infrastructure.training.losses import infinite_gradient, nan_loss
from tests.infrastructure.training.overflowing import BackwardScaled, Guarded, Masked, Scaled

CPU = torch.device("cpu")
FLOOR = 2.0**-16


@pytest.fixture
def diagnose(loss_fn, batch):
    def diagnose(
        *layers: nn.Module,
        scales: Sequence[float] = (1.0,),
        precision: Precision = Precision.FP16,
        batch=batch,
        loss=loss_fn,
    ) -> Diagnosis:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(4, 16), *layers, nn.SiLU(), nn.Linear(16, 1))
        passes = RepeatedPasses(model, loss, CPU)
        return diagnose_overflow(passes, batch, precision=precision, scales=scales, lowest=FLOOR)

    return diagnose


@pytest.mark.parametrize(
    ("layers", "module"),
    [((Scaled(1e5), Scaled(1e-5)), "1 (Scaled)"), ((Guarded(),), "1 (Guarded)")],
    ids=["infinite loss", "finite loss"],
)
def test_an_overflow_in_the_forward_pass_is_one_at_every_scale(diagnose, layers, module):
    found = diagnose(*layers, scales=(1.0, 1024.0))
    assert (found.cause, found.module, found.scale) == ("forward", module, 1.0)
    assert not found.lower_scale_helps


def test_an_overflow_in_the_backward_pass_goes_with_a_lower_scale(diagnose):
    found = diagnose(BackwardScaled(1e8))
    assert (found.cause, found.module) == ("backward", "1 (BackwardScaled)")
    assert found.lower_scale_helps


def test_a_mask_of_infinities_is_not_taken_for_an_overflow(diagnose):
    found = diagnose(BackwardScaled(1e8), Masked())
    assert (found.cause, found.module) == ("backward", "1 (BackwardScaled)")


def test_the_lowest_scale_that_overflows_is_the_one_examined(diagnose):
    found = diagnose(BackwardScaled(100.0), scales=(1.0, 64.0, 2.0**20, 2.0**24))
    assert (found.cause, found.scale) == ("backward", 2.0**20)


def test_a_healthy_batch_reproduces_nothing(diagnose):
    found = diagnose(scales=(1.0, 64.0))
    assert (found.cause, found.scale, found.module) == ("not_reproduced", 64.0, "")


@pytest.mark.parametrize("loss", [nan_loss, infinite_gradient])
def test_what_fp32_cannot_compute_either_is_not_blamed_on_precision(diagnose, loss):
    found = diagnose(loss=loss)
    assert found.cause == "fp32"
    assert found.module.startswith("the loss")


def test_nan_in_the_data_is_not_blamed_on_precision(diagnose, batch):
    poisoned = {**batch, "x": batch["x"].clone()}
    poisoned["x"][3, 2] = math.nan
    found = diagnose(batch=poisoned)
    assert (found.cause, found.module) == ("fp32", "0 (Linear)")


def test_a_value_beyond_fp16_is_within_bf16(diagnose):
    found = diagnose(Scaled(1e5), Scaled(1e-5), precision=Precision.BF16)
    assert found.cause == "not_reproduced"


def test_the_generators_are_where_they_were(diagnose):
    before = torch.get_rng_state()
    diagnose(nn.Dropout(0.5), BackwardScaled(1e8))
    torch.manual_seed(5)
    nn.Sequential(nn.Linear(4, 16), nn.Linear(16, 1))  # as `diagnose` makes them
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    diagnose(nn.Dropout(0.5), BackwardScaled(1e8))
    assert torch.equal(torch.get_rng_state(), after)
