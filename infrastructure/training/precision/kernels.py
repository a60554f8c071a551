"""Names the module in which an operation has no kernel for a half type."""

from __future__ import annotations

import re

import torch
from torch.nn import Module

from infrastructure.training.distributed.modules import unwrapped
from infrastructure.training.precision.precision import Precision

# For example "not implemented for 'Half'", "could not create a primitive descriptor" (oneDNN),
# "expected scalar type Float but found BFloat16", "float != c10::Half".
_ABOUT_HALF = re.compile(r"\b(Half|BFloat16|float16|bfloat16)\b|primitive")


class NoHalfKernelError(RuntimeError):
    """A module cannot compute in a half type on this device.

    Args:
        module: Qualified name of the innermost module that was running; empty for the model.
        kind: Its class.
        precision: The half precision.
        device: Where it ran.
        reason: Torch's message.
    """

    def __init__(
        self, module: str, kind: str, precision: Precision, device: torch.device, reason: str
    ) -> None:
        where = f"module {module!r} ({kind})" if module else f"the model itself ({kind})"
        remedy = (
            f"keep it in FP32 with keep_fp32=[{module!r}] in the TrainingJob or the "
            "FP16TrainingConfig, or with the agent's setting KEEP_FP32"
            if module
            else "cast there with .float(), or move it into a module of its own and name that in "
            "keep_fp32"
        )
        super().__init__(
            f"{where} cannot compute in {precision} on {device.type}: {reason}; {remedy}"
        )
        self.module = module


def missing_kernel(
    error: RuntimeError, model: Module, precision: Precision, device: torch.device
) -> NoHalfKernelError | None:
    """The error to raise from *error* if that is about half types; None if it is about others."""
    reason = str(error).partition("\n")[0].partition(" Run workload")[0].rstrip(". ")
    if isinstance(error, NoHalfKernelError) or not _ABOUT_HALF.search(reason):
        return None
    names = {module: name for name, module in unwrapped(model).named_modules()}
    name, kind, trace = "", type(unwrapped(model)).__name__, error.__traceback__
    while trace is not None:  # from the caller inwards
        module = trace.tb_frame.f_locals.get("self")
        if isinstance(module, Module) and names.get(module):
            name, kind = names[module], type(module).__name__
        trace = trace.tb_next
    return NoHalfKernelError(name, kind, precision, device, reason)
