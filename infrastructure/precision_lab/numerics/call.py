"""One call of a torch function, and the types in which it can be carried out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from infrastructure.precision_lab.numerics.functions import Kind, is_product, kind_of, mutates

HALF = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, *HALF)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a torch function, as a `TorchFunctionMode` receives it.

    Attributes:
        function: Function or method.
        args: Its arguments; tensors may be inside of lists and tuples.
        kwargs: Its named arguments.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def kind(self) -> Kind:
        """What the function does with its numbers."""
        return kind_of(self.function)

    @property
    def is_product(self) -> bool:
        """Whether it multiplies matrices."""
        return is_product(self.function)

    @property
    def mutates(self) -> bool:
        """Whether it writes into its first argument."""
        return mutates(self.function)

    def floats(self) -> list[Tensor]:
        """Arguments of at most 32 bits that decide in which type it computes.

        Scalars decide nothing beside other tensors, as in torch's own rules.
        """
        every = [t for t in tensors_in((self.args, self.kwargs)) if t.dtype in _FLOATS]
        return [tensor for tensor in every if tensor.ndim] or every

    def replaced(self, change: Callable[[Tensor], Tensor]) -> Call:
        """The same with *change* of each tensor it reads."""
        first = 1 if self.mutates else 0
        args = (*self.args[:first], *map_tensors(self.args[first:], change))
        return Call(self.function, args, map_tensors(self.kwargs, change))

    def run(self) -> Any:
        """Call the function as it is."""
        return self.function(*self.args, **self.kwargs)

    def run_in(self, dtype: torch.dtype) -> Any:
        """Call the function with its inputs in *dtype*; float64 and integers stay.

        In float32 a half type that is asked for as ``dtype=`` becomes float32, too.
        """
        deciding = {id(tensor) for tensor in self.floats()}

        def cast(tensor: Tensor) -> Tensor:
            wide = dtype == torch.float32 and tensor.dtype in HALF
            return tensor.to(dtype) if wide or id(tensor) in deciding else tensor

        call = self.replaced(cast)
        if dtype == torch.float32 and call.kwargs.get("dtype") in HALF:
            call.kwargs["dtype"] = torch.float32
        target = self.args[0] if self.mutates else None
        if not isinstance(target, Tensor) or target.dtype not in _FLOATS or target.dtype == dtype:
            return call.run()
        computed = target.to(dtype)
        self.function(computed, *call.args[1:], **call.kwargs)
        return target.copy_(computed)


def tensors_in(value: object) -> Iterator[Tensor]:
    """Tensors in lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif type(value) is dict:
        yield from tensors_in(list(value.values()))


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """*value* with *change* of each tensor in lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)([map_tensors(item, change) for item in value])
    if type(value) is dict:
        return {key: map_tensors(item, change) for key, item in value.items()}
    return value
