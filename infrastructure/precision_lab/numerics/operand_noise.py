"""Random errors in the operands of matrix products, as large as those of a half type."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from infrastructure.events import Role
from infrastructure.events.role_precision import FP32, RolePrecision
from infrastructure.precision_lab.numerics.call import Call, map_tensors
from infrastructure.torch_internals.backward_pass import in_own_backward
from infrastructure.training.precision import Precision


class OperandNoise(TorchFunctionMode):
    """FP32 in which operands of matrix products carry errors of half a unit in the last place.

    Args:
        precisions: Types of each role. Roles with a half type are disturbed.
        seed: Seed of the errors.
        share: Of these errors.
        results: Whether the results of products carry them too, and so do their gradients.
    """

    def __init__(
        self,
        precisions: Mapping[Role, RolePrecision],
        seed: int,
        *,
        share: float = 1.0,
        results: bool = False,
    ) -> None:
        super().__init__()
        self._units = {role: share * unit_roundoff(precisions.get(role, FP32)) for role in Role}
        self._unit, self._results = 0.0, results
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    @contextmanager
    def role(self, role: Role) -> Iterator[None]:
        """Region in which *role* computes."""
        before, self._unit = self._unit, self._units[role]
        try:
            yield
        finally:
            self._unit = before

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        call = Call(func, args, kwargs or {})
        if not self._unit or not call.is_product or in_own_backward():
            return call.run()
        # A vector that is added, such as a bias, and a mask are not operands.
        first = 1 if func.__name__.startswith(("add", "badd")) else 0
        last = 3 if func.__name__ == "scaled_dot_product_attention" else len(args)
        operands = map_tensors(args[first:last], self._disturbed)
        result = func(*args[:first], *operands, *args[last:], **call.kwargs)
        return map_tensors(result, self._disturbed) if self._results else result

    def _disturbed(self, operand: Tensor) -> Tensor:
        if operand.dtype != torch.float32 or operand.ndim < 2:
            return operand
        device = operand.device
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        errors = torch.empty_like(operand, requires_grad=False)
        errors.uniform_(1 - self._unit, 1 + self._unit, generator=self._generators[device])
        return operand * errors


def unit_roundoff(precision: RolePrecision) -> float:
    """Largest relative error of rounding to the half type of *precision*, 0 without one."""
    names = (precision.store, precision.compute, precision.out)
    half = next((name for name in names if name != "fp32"), None)
    return 0.0 if half is None else torch.finfo(Precision(half).compute).eps / 2
