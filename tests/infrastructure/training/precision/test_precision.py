from __future__ import annotations

import pytest
import torch

from infrastructure.events import PrecisionState
from infrastructure.training.precision import (
    Precision,
    native_half_types,
    resolve,
    resolve_device,
)

CPU = torch.device("cpu")


def wish(effective, reason="default"):
    return PrecisionState(requested="fp16", effective=effective, reason=reason)


def test_storage_and_results_are_float32_always():
    assert {p.store for p in Precision} == {p.out for p in Precision} == {torch.float32}
    assert [p.scales_loss for p in (Precision.FP32, Precision.FP16, Precision.BF16)] == [
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("half", ["fp16", "bf16"])
def test_a_cpu_resolves_to_fp32_unless_forced(half):
    assert resolve(wish(half), CPU, cpu_half=False) == wish("fp32", "no_accelerator")
    assert resolve(wish(half), CPU, cpu_half=True) == wish(half)


def test_a_demand_for_fp32_keeps_its_reason():
    assert resolve(wish("fp32", "operator"), CPU, cpu_half=False).reason == "operator"


def test_devices_by_name():
    assert resolve_device("cpu") == CPU
    assert resolve_device("auto").type in {"cpu", "cuda"}
    assert native_half_types(CPU) == {"fp16": False, "bf16": False}
    with pytest.raises(ValueError, match="auto, cpu, cuda"):
        resolve_device("gpu")
    with pytest.raises(ValueError, match="GENESIS_DEVICE=auto"):
        resolve_device("cuda:99")
