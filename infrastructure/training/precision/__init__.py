"""Precision: its resolution, the forward pass under it, the live switch, FP32 masters."""

from infrastructure.training.precision.devices import (
    device_name,
    native_half_types,
    resolve_device,
)
from infrastructure.training.precision.forward import (
    PrecisionForward,
    checked_loss,
    explain_backward_error,
)
from infrastructure.training.precision.keep_fp32 import UnknownModuleError
from infrastructure.training.precision.kernels import NoHalfKernelError
from infrastructure.training.precision.precision import Precision, resolve
from infrastructure.training.precision.switch import PinnedPrecisionError

__all__ = [
    "NoHalfKernelError",
    "PinnedPrecisionError",
    "Precision",
    "PrecisionForward",
    "UnknownModuleError",
    "checked_loss",
    "device_name",
    "explain_backward_error",
    "native_half_types",
    "resolve",
    "resolve_device",
]
