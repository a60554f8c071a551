"""Precision: its resolution, the forward pass under it, the live switch, FP32 masters."""

from infrastructure.training.precision.devices import (
    device_name,
    native_half_types,
    resolve_device,
)
from infrastructure.training.precision.forward import PrecisionForward, checked_loss
from infrastructure.training.precision.precision import Precision, resolve
from infrastructure.training.precision.switch import PinnedPrecisionError

__all__ = [
    "PinnedPrecisionError",
    "Precision",
    "PrecisionForward",
    "checked_loss",
    "device_name",
    "native_half_types",
    "resolve",
    "resolve_device",
]
