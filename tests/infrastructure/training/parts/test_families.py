"""100 steps of each family beside the textbook's loop of several optimizers and scalers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from infrastructure.events import PrecisionState
from infrastructure.training import FP16TrainingConfig, Precision
from infrastructure.training.parts import PartsTrainer
from tests.infrastructure.training.parts.families import FAMILIES, GROWTH_INTERVAL, textbook

STEPS, SCALE = 100, 2.0**12


def trained(name: str, precision: str) -> PartsTrainer:
    family = FAMILIES[name]
    torch.manual_seed(0)
    config = FP16TrainingConfig(
        cpu_half=True, loss_scale=SCALE, growth_interval=GROWTH_INTERVAL, max_grad_norm=None
    )
    wish = PrecisionState(requested="fp16", effective=precision, reason="default")
    trainer = PartsTrainer(family.model(), family.parts, family.targets, config, wish=wish)
    for number in range(STEPS):
        trainer.train_batch(family.batch(number))
    return trainer


def differences(name: str) -> list[str]:
    """Names of what FP32 training leaves different from the textbook's."""
    torch.manual_seed(0)
    model = FAMILIES[name].model()
    textbook(FAMILIES[name], model, STEPS, torch.float32, SCALE)
    ours = trained(name, "fp32").model.state_dict()
    return [key for key, tensor in model.state_dict().items() if not torch.equal(ours[key], tensor)]


@pytest.mark.process
def test_fp32_is_that_of_the_textbook_bit_for_bit():
    """In a process whose products do not round by the alignment of memory, as MKL's may."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.infrastructure.training.parts.test_families"],
        env={**os.environ, "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        check=True,
    )
    told = [line for line in run.stdout.splitlines() if line.split()[0] in FAMILIES]
    assert told == [f"{name} []" for name in FAMILIES]


@pytest.mark.parametrize("name", FAMILIES)
def test_fp16_skips_and_scales_as_the_textbook_does(name):
    torch.manual_seed(0)
    model = FAMILIES[name].model()
    expected = textbook(FAMILIES[name], model, STEPS, Precision.FP16.compute, SCALE)
    found = {}
    for part, member in trained(name, "fp16").parts.items():
        skipped = member.trainer.training_steps - int(member.trainer.get_stats()["applied_steps"])
        found[part] = (member.trainer.scale_in_force.item(), skipped)
    assert found == expected
    assert sum(skipped for _, skipped in expected.values()) > 0


if __name__ == "__main__":
    for family in FAMILIES:
        sys.stdout.write(f"{family} {differences(family)}\n")
