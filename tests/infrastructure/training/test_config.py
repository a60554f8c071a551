from __future__ import annotations

import math

import pytest
import torch

from infrastructure.training import FP16TrainingConfig, Precision


@pytest.mark.parametrize(
    "change",
    [
        {"floor_policy": "hope"},
        {"nonfinite_loss_patience": 0},
        {"loss_scale": 0.0},
        {"loss_scale": math.nan},
        {"growth_factor": 1.0},
        {"backoff_factor": 1.0},
        {"growth_interval": 0},
        {"max_grad_norm": -1.0},
        {"min_loss_scale": 0.0},
        {"accumulate": 0},
        {"accumulate": 1.5},
        {"growth_interval": 2.5},
        {"precision": "half"},
        {"precision": torch.float16},
    ],
)
def test_a_wrong_configuration_is_named(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        FP16TrainingConfig(**change)


def test_a_precision_may_be_named():
    assert FP16TrainingConfig(precision="bf16").precision is Precision.BF16


def test_a_preset_is_a_published_recipe():
    config = FP16TrainingConfig.preset("fast-growth")
    assert (config.growth_interval, config.loss_scale, config.max_grad_norm) == (400, 65536.0, 1.0)
    with pytest.raises(ValueError, match=r"'rl'.*'fast-growth'"):
        FP16TrainingConfig.preset("rl")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("loss_scale", "64", r"loss_scale\n.*'64'"),
        ("growth_factor", None, r"growth_factor\n.*None"),
        ("max_grad_norm", "1", "max_grad_norm"),
        ("enabled", "false", r"enabled\n.*'false'"),
    ],
)
def test_a_configuration_of_the_wrong_type_is_named(name, value, words):
    with pytest.raises(ValueError, match=words):
        FP16TrainingConfig(**{name: value})
