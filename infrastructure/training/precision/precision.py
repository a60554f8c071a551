"""Precision is a policy: which dtype computes, resolved from a request and a device."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

import torch

from infrastructure.events import PrecisionState
from infrastructure.events.precision_state import fp32_reason_of_device
from infrastructure.training.precision.devices import native_half_types

_COMPUTE = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Precision(StrEnum):
    """Storage and results are always float32; only `compute` differs."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def store(self) -> torch.dtype:
        """Dtype of parameters and optimizer state."""
        return torch.float32

    @property
    def compute(self) -> torch.dtype:
        """Dtype of the operations that autocast lowers."""
        return _COMPUTE[self.value]

    @property
    def out(self) -> torch.dtype:
        """Dtype of the results of `Forward`, and so of every loss."""
        return torch.float32

    @property
    def scales_loss(self) -> bool:
        """Whether gradients need a loss scale: FP16 has five exponent bits, the others eight."""
        return self is Precision.FP16


def resolve(wish: PrecisionState, device: torch.device, *, cpu_half: bool) -> PrecisionState:
    """Lower *wish* to FP32, with the reason, where the device lacks its half type.

    Never to the other half type: FP16 and BF16 fail in different ways.

    Args:
        wish: Precision that was decided on.
        device: Device on which the run computes.
        cpu_half: Run half precision on a CPU anyway: slow, for tests and demonstrations.

    Raises:
        ValueError: The wish is ``auto``, and nothing has been measured.
    """
    if wish.effective == "auto":
        raise ValueError(
            "precision 'auto' needs a job to measure: train() measures it; elsewhere pass "
            "Precision(preflight(job, device).verdict)"
        )
    if wish.effective == "fp32":  # no module is raised above the others
        return replace(wish, modules=())
    if wish.reason == "measured":  # on this very device
        return wish
    reason = fp32_reason_of_device(
        wish.effective,
        accelerator=device.type != "cpu",
        native=native_half_types(device),
        cpu_half=cpu_half,
    )
    if reason is None:
        return wish
    return PrecisionState(requested=wish.requested, effective="fp32", reason=reason)
