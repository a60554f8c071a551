"""What a checkpoint holds of the adaptive options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from infrastructure.training import FP16Trainer


@pytest.fixture
def run(loss_fn, batch, spiked) -> Callable[[FP16Trainer, range], None]:
    def run(trainer: FP16Trainer, steps: range) -> None:
        for step in steps:
            trainer.step(trainer.training_step(spiked(batch, step), loss_fn))

    return run


def test_a_resumed_training_is_bit_exact(make_trainer, run, tmp_path: Path) -> None:
    options = {"adaptive_clip": True, "adaptive_growth_interval": True, "growth_interval": 3}
    options |= {"loss_scale": 2.0**17}  # the ceiling is met, trials fail
    whole, first, second = (make_trainer("fp16", **options) for _ in range(3))
    run(whole, range(90))
    run(first, range(45))
    first.save_checkpoint(tmp_path / "c.pt")
    second.load_checkpoint(tmp_path / "c.pt")
    run(second, range(45, 90))
    assert second.state_dict()["adaptive_clip"] == whole.state_dict()["adaptive_clip"]
    assert second.state_dict()["loss_scale"] == whole.state_dict()["loss_scale"]
    assert whole.get_stats()["overflow_steps"] > 2
    for one, other in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_without_clipping_loads_into_a_clipping_trainer(
    make_trainer, run, tmp_path: Path
) -> None:
    plain, clipping = make_trainer("fp16"), make_trainer("fp16", adaptive_clip=True)
    run(plain, range(3))
    plain.save_checkpoint(tmp_path / "plain.pt")
    clipping.load_checkpoint(tmp_path / "plain.pt")
    run(clipping, range(3))
    clipping.save_checkpoint(tmp_path / "clipping.pt")
    plain.load_checkpoint(tmp_path / "clipping.pt")
