"""Counts the operations of matrix products by the type in which they are computed."""

from __future__ import annotations

from typing import Any

from infrastructure.torch_internals.dispatch_mode import TorchDispatchMode
from infrastructure.training.diagnostics.module_names import floating_tensors


class ProductFlops(TorchDispatchMode):
    """Adds up the floating-point operations of products and convolutions, by type of their inputs.

    Attributes:
        flops: Operations by type, such as ``float16``.
    """

    def __init__(self) -> None:
        super().__init__()
        from torch.utils.flop_counter import flop_registry

        self._registry = flop_registry
        self.flops: dict[str, float] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        count = self._registry.get(func.overloadpacket)
        if count is not None:
            inputs = list(floating_tensors(args))
            name = str(inputs[-1].dtype).removeprefix("torch.")
            flops = float(count(*args, **(kwargs or {}), out_val=result))
            self.flops[name] = self.flops.get(name, 0.0) + flops
        return result
