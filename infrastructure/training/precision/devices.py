"""Devices: find one by its setting, name it, and ask which half types it computes."""

from __future__ import annotations

import platform

import torch

from infrastructure.events.precision_state import PrecisionName, fp32_reason_of_device

_FP16_CAPABILITY = (5, 3)  # the first CUDA compute capability with FP16 arithmetic


def resolve_device(name: str) -> torch.device:
    """Turn ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` into a device that exists.

    Raises:
        ValueError: *name* is not a device, or names a CUDA device that this machine lacks.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    refusal = f"device must be auto, cpu, cuda or cuda:N, got {name!r}"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ValueError(refusal) from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(refusal)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {name!r} was requested, but torch sees {torch.cuda.device_count()} CUDA "
            "devices: use auto (GENESIS_DEVICE=auto), or a CUDA build of torch and its driver"
        )
    return device


def native_half_types(device: torch.device) -> dict[str, bool]:
    """Whether *device* computes each half type natively, by name; on a CPU none."""
    if device.type != "cuda":
        return {"fp16": False, "bf16": False}
    return {
        "fp16": torch.cuda.get_device_capability(device) >= _FP16_CAPABILITY,
        "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
    }


def device_name(device: torch.device) -> str:
    """The model name of *device*; measurements hold for devices of the same name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def has_half_type(name: PrecisionName, device: torch.device, *, cpu_half: bool) -> bool:
    """Whether *device* may compute in this type; FP32 is allowed everywhere.

    Args:
        name: The precision.
        device: The device.
        cpu_half: Whether half precision may run on a CPU anyway.
    """
    reason = fp32_reason_of_device(
        name,
        accelerator=device.type != "cpu",
        native=native_half_types(device),
        cpu_half=cpu_half,
    )
    return reason is None
