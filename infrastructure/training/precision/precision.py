"""Precision is a policy: which dtype computes, decided from a wish and a device."""

from __future__ import annotations

from enum import StrEnum

import torch

from infrastructure.events import PrecisionState

_COMPUTE = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_FP16_CAPABILITY = (5, 3)  # the first CUDA compute capability with FP16 arithmetic


class Precision(StrEnum):
    """Storage is float32 and results are float32 always; only `compute` differs."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def store(self) -> torch.dtype:
        """Of parameters and optimizer state."""
        return torch.float32

    @property
    def compute(self) -> torch.dtype:
        """Of the operations that autocast lowers."""
        return _COMPUTE[self.value]

    @property
    def out(self) -> torch.dtype:
        """Of what `Forward` returns, and so of every loss."""
        return torch.float32

    @property
    def scales_loss(self) -> bool:
        """Whether gradients need a loss scale: FP16 has five exponent bits, the others eight."""
        return self is Precision.FP16


def resolve_device(name: str) -> torch.device:
    """Turn ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` into a device that exists.

    Raises:
        ValueError: *name* is no device, or a CUDA device that this machine lacks.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {name!r} was asked for, but torch sees {torch.cuda.device_count()} CUDA "
            "devices: set GENESIS_DEVICE=auto or install a CUDA build of torch and its driver"
        )
    return device


def hardware(device: torch.device) -> dict[str, bool]:
    """Which half types *device* computes natively, by name; none on a CPU."""
    if device.type != "cuda":
        return {"fp16": False, "bf16": False}
    return {
        "fp16": torch.cuda.get_device_capability(device) >= _FP16_CAPABILITY,
        "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
    }


def resolve(wish: PrecisionState, device: torch.device, *, cpu_half: bool) -> PrecisionState:
    """Hold a wish against the hardware: what the device lacks becomes FP32, with the reason.

    Never another half type: FP16 and BF16 fail in different ways, and whoever chose one chose
    its failures.

    Args:
        wish: What the operator's side decided.
        device: Where the run computes.
        cpu_half: Run half precision on a CPU all the same: slow, for tests and demonstrations.

    Raises:
        ValueError: The wish is ``auto``, and nothing has been measured.
    """
    if wish.effective == "auto":
        raise ValueError(
            "precision 'auto' needs a job to measure: train() measures it; elsewhere pass "
            "Precision(preflight(job, device).verdict)"
        )
    if wish.effective == "fp32" or wish.reason == "measured":  # measured on this very device
        return wish
    if device.type == "cpu" and cpu_half:
        return wish
    if device.type == "cpu":
        return PrecisionState(requested=wish.requested, effective="fp32", reason="no_accelerator")
    if not hardware(device)[wish.effective]:
        return PrecisionState(requested=wish.requested, effective="fp32", reason="unsupported")
    return wish
