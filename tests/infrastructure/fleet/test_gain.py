from __future__ import annotations

from itertools import count

import pytest
import torch
from torch import nn

from infrastructure.fleet import FleetMember, measure_gain
from infrastructure.training import FP16Trainer
from tests.infrastructure.fleet.twins import loss

BATCHES = {name: {"x": torch.randn(4, 8), "y": torch.randn(4, 8)} for name in "ab"}


def members(*layers: nn.Module) -> dict[str, FleetMember]:
    found = {}
    for name in BATCHES:
        model = nn.Sequential(nn.Linear(8, 8), *layers)
        trainer = FP16Trainer(model, torch.optim.AdamW(model.parameters(), fused=True))
        found[name] = FleetMember(trainer=trainer, loss=loss)
    return found


@pytest.mark.parametrize(("alone", "fleet", "pays"), [(3.0, 2.0, True), (1.0, 1.0, False)])
def test_the_measured_ratio_decides(alone: float, fleet: float, pays: bool) -> None:
    costs = iter([alone, fleet] * 5)
    times = (moment for cost in costs for moment in (0.0, cost))
    gain = measure_gain(members, BATCHES, clock=lambda: next(times))
    assert (gain.ratio, gain.pays) == (alone / fleet, pays)
    assert "2 of 2 members are stacked" in gain.reason


def test_members_that_train_alone_are_not_timed() -> None:
    ticks = count()
    gain = measure_gain(lambda: members(nn.LayerNorm(8)), BATCHES, clock=lambda: next(ticks))
    assert not gain.pays
    assert next(ticks) == 0
    assert "layer '1' is a LayerNorm" in gain.reason


def test_an_error_of_a_member_is_raised() -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        measure_gain(members, {name: {"x": torch.randn(4, 3)} for name in "ab"})
