"""How a role computes in pure half precision: the types of a model after ``model.half()``.

There every operation takes and gives the half type, unless the model's own code casts a value to
float32. Such a value is *wide*: what is computed from it is float32 and wide again, by torch's
rules of type promotion, until the code casts it back. A float32 value that is not wide comes from
elsewhere, such as a batch, another role or a place that is in FP32 now, and is rounded when a place
in half precision uses it. So a place in FP32 changes nothing but itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from infrastructure.events import Role
from infrastructure.precision_lab.numerics.call import HALF, Call, tensors_in
from infrastructure.precision_lab.numerics.functions import Kind
from infrastructure.torch_internals import pytree

_WIDE_FOR = "_wide_for"  # attribute of a tensor: the role whose code cast it to float32


def widened(result: Any, role: Role) -> Any:
    """*result* with its float32 tensors marked as wide for *role*."""

    def mark(tensor: Tensor) -> Tensor:
        if tensor.dtype != torch.float32 or is_wide(tensor, role):
            return tensor
        alias = tensor.view_as(tensor)  # the tensor itself may be in use elsewhere
        setattr(alias, _WIDE_FOR, role)
        return alias

    return pytree.map_only(Tensor, mark, result)


def is_wide(tensor: Tensor, role: Role) -> bool:
    """Whether the code of *role* made *tensor* float32."""
    return tensor.dtype == torch.float32 and getattr(tensor, _WIDE_FOR, None) is role


def run_pure(call: Call, role: Role, half: torch.dtype, *, in_fp32: bool) -> tuple[Any, bool]:
    """Carry out *call* of *role*, at a place in FP32 or in *half*.

    Returns:
        Its result, and whether it has computed in half precision.
    """
    if call.kind is Kind.DTYPE:
        return _dtype(call.args[0], role, half), False
    if call.kind is Kind.CAST:
        return _cast(call, role, half, in_fp32=in_fp32)
    if call.kind is Kind.MOVE:
        wide = any(is_wide(tensor, role) for tensor in tensors_in((call.args, call.kwargs)))
        result = call.run()
        return (widened(result, role) if wide and not call.mutates else result), False
    floats = call.floats()
    wide = not call.is_product and any(is_wide(tensor, role) for tensor in floats)
    narrow = not in_fp32 and not wide
    result = call.run_in(half if narrow else torch.float32)
    asked = call.kwargs.get("dtype") == torch.float32
    if not call.mutates and (wide or asked):
        result = widened(result, role)
    return result, narrow and bool(floats)


def _dtype(tensor: Tensor, role: Role, half: torch.dtype) -> torch.dtype:
    """The type that the model would see if every place were in half precision."""
    free = tensor.dtype == torch.float32 and not is_wide(tensor, role)
    return half if free else tensor.dtype


def _cast(call: Call, role: Role, half: torch.dtype, *, in_fp32: bool) -> tuple[Any, bool]:
    """A cast: to float32 it makes wide; to a half type it does nothing at a place in FP32."""
    asked = _type_asked_for(call, role, half)
    result = call.run()
    if asked == torch.float32:
        return widened(result.float(), role), False
    if asked not in HALF:
        return result, False
    if in_fp32:
        return call.args[0].to(result.device).float(), False
    return result.to(asked), True


def _type_asked_for(call: Call, role: Role, half: torch.dtype) -> torch.dtype | None:
    name = call.function.__name__
    by_name = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16}
    if name in by_name:
        return by_name[name]
    for argument in (*call.args[1:], *call.kwargs.values()):
        if isinstance(argument, torch.dtype):
            return argument
        if isinstance(argument, Tensor):
            return _dtype(argument, role, half)
    return None
