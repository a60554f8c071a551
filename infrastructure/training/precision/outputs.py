"""Casts the half tensors in what a model returns to float32; every type stays as it was.

Nothing is changed in place, since a model may keep what it returns. Where an object holds a half
tensor, a shallow copy of the object takes its place; every other object comes back itself.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache, partial
from types import MemberDescriptorType, SimpleNamespace
from typing import Any, TypeVar

import structlog
import torch
from torch import Tensor
from torch.distributions import Distribution, Transform
from torch.nn import Module

from infrastructure.torch_internals import pytree

T = TypeVar("T")

_HALF = (torch.float16, torch.bfloat16)
_LEAVES = (bool, int, float, complex, str, bytes, type, Module, torch.Size, torch.dtype)
_COLLECTIONS = (list, deque, Mapping, Distribution, Transform)
_OBJECTS_SEARCHED = 1000  # for a notice about half tensors

log = structlog.get_logger()


def to_float32(result: Any, *, in_use: Callable[[object], bool] = lambda _: False) -> Any:
    """Cast every half tensor in *result* that can be reached to float32, by new tensors.

    Opened are mappings, lists, tuples, dataclasses, `torch.distributions`, what is registered as
    a pytree, and objects whose attributes are tensors or collections of them. Anything else
    passes as it is; if it holds half tensors, that is logged once for its type.

    A result may contain itself. One that is nested too deeply for Python's stack passes, too.

    Args:
        in_use: Returns whether the model or the caller continues to use an object, so that a copy
            must not take its place.
    """
    if isinstance(result, Tensor):
        return result.float() if result.dtype in _HALF else result
    caster = _Caster(in_use)
    try:
        return caster.cast(result)
    except RecursionError:
        return caster.passed(result)


def cast_floats(value: T, dtype: torch.dtype) -> T:
    """Cast the floating-point tensors of the pytree *value*; a model's output keeps its class."""
    cast: T = pytree.map_only(
        Tensor, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, value
    )
    return cast


class _Caster:
    """Casts one result; a tensor or object that occurs twice in it does so afterwards, too."""

    def __init__(self, in_use: Callable[[object], bool]) -> None:
        self._in_use = in_use
        self._done: dict[int, tuple[Any, Any]] = {}  # by id, which holds while the value lives
        self._open: set[int] = set()  # of the values that contain the one at hand
        self._copies: dict[int, Any] = {}  # of open values, and others that change

    def cast(self, value: Any, *, inside_object: bool = False) -> Any:
        if value is None or isinstance(value, _LEAVES):
            return value
        key = id(value)
        if key in self._done:
            return self._done[key][1]
        if key in self._open:
            return self._cast_inside_itself(value, inside_object)
        self._open.add(key)
        result = self._cast_new(value, inside_object)
        self._open.discard(key)
        return self._done.setdefault(key, (value, result))[1]  # unless it was done inside itself

    def _cast_inside_itself(self, value: Any, inside_object: bool) -> Any:
        """What takes the place of *value* inside itself: a copy that is yet to be filled."""
        if not _holds_half(value, most=None):
            return value
        if isinstance(value, tuple):  # something in it is filled later, so this ends
            result = self._cast_tuple(value, inside_object)
        elif type(value) in pytree.NODES and not _is_filled(value):
            return self.passed(value)
        else:
            result = self._copied(value)
        return self._done.setdefault(id(value), (value, result))[1]

    def _cast_new(self, value: Any, inside_object: bool) -> Any:
        if isinstance(value, Tensor):
            return value.float() if value.dtype in _HALF else value
        if isinstance(value, tuple):
            return self._cast_tuple(value, inside_object)
        if _is_filled(value):
            return self._replace(value, inside_object)
        if type(value) in pytree.NODES:
            return self._cast_pytree(value)
        if inside_object:  # the outer object is logged
            return value
        return self.passed(self._replace(value, True) if _is_plain(value) else value)

    def _cast_tuple(self, value: tuple[Any, ...], inside_object: bool) -> Any:
        items = [self.cast(item, inside_object=inside_object) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        make = getattr(type(value), "_make", type(value))  # of a named tuple
        try:
            return make(items)
        except TypeError:  # a subclass with a constructor of its own
            return self.passed(value)

    def _cast_pytree(self, value: Any) -> Any:
        node = pytree.NODES[type(value)]
        children, context = node.flatten_fn(value)
        cast = [self.cast(child) for child in children]
        if all(new is old for new, old in zip(cast, children, strict=True)):
            return value
        return value if self._in_use(value) else node.unflatten_fn(cast, context)

    def _replace(self, value: Any, inside_object: bool) -> Any:
        """*value*, or a copy of it with other items and attributes if any of them changes."""
        cast = partial(self.cast, inside_object=inside_object)
        items, members = _read(_items(value)), _read(_attributes(value))
        changed = [(key, new) for key, old in items if (new := cast(old)) is not old]
        attributes = [(name, new) for name, old in members if (new := cast(old)) is not old]
        if not changed and not attributes:
            return value
        copied = self._copied(value)
        if copied is value:
            return value
        try:
            for key, new in changed:
                copied[key] = new
            for name, new in attributes:
                object.__setattr__(copied, name, new)  # a frozen dataclass, too
        except Exception:  # the author's own code
            return self.passed(value)
        return copied

    def _copied(self, value: Any) -> Any:
        """A shallow copy of *value*, the same in every call; *value* itself where it must stay."""
        key = id(value)
        if key not in self._copies:
            self._copies[key] = self._copy(value)
        return self._copies[key]

    def _copy(self, value: Any) -> Any:
        if type(value) not in (dict, list) and self._in_use(value):
            return value
        try:
            return copy.copy(value)
        except Exception:  # the author's own code
            return self.passed(value)

    def passed(self, value: Any) -> Any:
        """*value* itself; logs once for its type if it holds half tensors and is not in use."""
        if _holds_half(value) and not self._in_use(value):
            _log_passed(f"{type(value).__module__}.{type(value).__qualname__}")
        return value


def _is_filled(value: object) -> bool:
    """Whether a copy of *value* can get other items and attributes."""
    return isinstance(value, _COLLECTIONS) or is_dataclass(value)


def _items(value: object) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, list | deque):
        yield from enumerate(value)
    elif isinstance(value, Mapping):
        yield from value.items()


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    yield from list(getattr(value, "__dict__", {}).items())
    for name in _slots(type(value)):
        if hasattr(value, name):
            yield name, getattr(value, name)


def _slots(kind: type) -> tuple[str, ...]:
    """Names of the attributes that objects of *kind* keep in slots."""
    return tuple(
        name
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for name, member in vars(base).items()
        if isinstance(member, MemberDescriptorType)
    )


def _read(pairs: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """*pairs*; empty if the author's own code raises when they are read."""
    try:
        return list(pairs)
    except RecursionError:  # our own
        raise
    except Exception:
        return []


def _is_plain(value: object) -> bool:
    """Whether *value* has only attributes, and no way of copying of its own."""
    kind = type(value)
    return isinstance(value, SimpleNamespace) or (
        (hasattr(value, "__dict__") or bool(_slots(kind)))
        and not callable(value)
        and kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
        and kind.__getstate__ is object.__getstate__
        and not hasattr(kind, "__copy__")
        and not hasattr(kind, "__setstate__")
    )


@cache
def _log_passed(kind: str) -> None:
    log.warning(
        "half_tensors_returned",
        type=kind,
        reason="forward() cannot replace tensors inside such an object, so it came back as it is",
        remedy="cast what you take out of it with .float(), or return tensors in a dataclass; a "
        "cache that goes back into the model may stay as it is",
    )


def _holds_half(value: object, most: int | None = _OBJECTS_SEARCHED) -> bool:
    """Whether a half tensor is among the first *most* objects reached from *value*."""
    queue: deque[object] = deque([value])
    seen: dict[int, object] = {}  # values too, so that no id is used again
    while queue and (most is None or len(seen) < most):
        item = queue.popleft()
        if isinstance(item, Tensor):
            if item.dtype in _HALF:
                return True
        elif id(item) not in seen and not isinstance(item, _LEAVES):
            seen[id(item)] = item
            queue += (inside for _, inside in _read(_attributes(item)) + _read(_items(item)))
            if isinstance(item, tuple | set | frozenset):
                queue += item
    return False
