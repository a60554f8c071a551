"""Precision is a policy: which dtype computes, resolved from a request and a device."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

import torch

from infrastructure.events import PrecisionName, PrecisionState
from infrastructure.events.precision_state import PrecisionReason, fp32_reason_of_device
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

    Never to the other half type: FP16 and BF16 fail in different ways. So are single parts of it.

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
        return replace(wish, modules=(), parts={})

    def lacking(name: PrecisionName) -> PrecisionReason | None:
        accelerator, native = device.type != "cpu", native_half_types(device)
        return fp32_reason_of_device(
            name, accelerator=accelerator, native=native, cpu_half=cpu_half
        )

    reason = None if wish.reason == "measured" else lacking(wish.effective)  # on this very device
    if reason is None:
        changed = ((p, name) for p, name in wish.parts.items() if name != wish.effective)
        parts = {part: "fp32" if lacking(name) else name for part, name in changed}
        return replace(wish, parts=parts)
    return PrecisionState(requested=wish.requested, effective="fp32", reason=reason)
