"""Observe a step below autograd and autocast: host reads, dtypes of matrix products."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

_READS = {
    "aten::_local_scalar_dense",
    "aten::equal",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::nonzero",
}
_PRODUCTS = {"aten::addmm", "aten::mm", "aten::bmm", "aten::baddbmm", "aten::linear"}
_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_AMPERE = (8, 0)  # the first CUDA compute capability with TF32 products


def count_reads(optimizer: Optimizer, steps: Callable[[], None], device: torch.device) -> int:
    """Count how often *steps* makes the host wait for *device*.

    On CUDA this uses the sync debug mode, on a CPU it counts the operations that would wait on
    CUDA. The step counters of an optimizer that is not fused live on the host on every device;
    reading them waits for nothing and is not counted.
    """
    if device.type == "cuda":
        return _count_cuda_waits(steps)
    counters = {
        id(value)
        for state in optimizer.state.values()
        for name, value in state.items()
        if name == "step" and not optimizer.defaults.get("fused")
    }
    observer = _Observer(counters)
    with observer:
        steps()
    return observer.reads


def _count_cuda_waits(steps: Callable[[], None]) -> int:
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            steps()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in caught)


def effective_precision(step: Callable[[], None], device: torch.device) -> str:
    """Return the precision in which *step*'s matrix products were actually computed.

    Returns:
        ``fp32``, ``tf32``, ``bf16`` or ``fp16``; several joined by ``+``; ``none`` for none.
    """
    observer = _Observer(())
    with observer:
        step()
    names = {_NAMES.get(dtype, str(dtype)) for dtype in observer.product_dtypes}
    if "fp32" in names and _uses_tf32(device):
        names = names - {"fp32"} | {"tf32"}
    return "+".join(sorted(names)) or "none"


def _uses_tf32(device: torch.device) -> bool:
    return (
        device.type == "cuda"
        and torch.get_float32_matmul_precision() != "highest"
        and torch.cuda.get_device_capability(device) >= _AMPERE
    )


class _Observer(TorchDispatchMode):
    def __init__(self, uncounted: Collection[int]) -> None:
        super().__init__()
        self._uncounted = uncounted
        self.reads = 0
        self.product_dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(
        self,
        func: OpOverload[..., object],
        types: Collection[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        name = func.name().partition(".")[0]
        if name in _READS and id(args[0]) not in self._uncounted:
            self.reads += 1
        elif name in _PRODUCTS:
            self.product_dtypes |= {arg.dtype for arg in args if isinstance(arg, Tensor)}
        return func(*args, **(kwargs or {}))


def refuse_precisions(one: str, other: str) -> str:
    """Return why two effective precisions cannot be compared; empty if they can."""
    if one != other:
        return ""
    return f"both computed {one}: this does not compare precisions"
