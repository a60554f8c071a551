"""Where the function under repair is: a global of the program, or a method of a class."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import reduce
from types import FunctionType, ModuleType
from typing import Any


class UnsupportedFunctionError(ValueError):
    """The function cannot be replaced by one that calls another process."""


def find_function(module: ModuleType, name: str) -> Callable[..., Any]:
    """Return the function *name* of *module*, ``function`` or ``Class.method``.

    Raises:
        LookupError, AttributeError: There is none.
    """
    owner, attribute = _owner(module, name)
    found = inspect.getattr_static(owner, attribute)
    function: Callable[..., Any] = _plain(found)
    return function


def replace_function(module: ModuleType, name: str, proxy: Callable[..., Any]) -> None:
    """Put *proxy* in the place of the function *name*, and of its other names there.

    Raises:
        LookupError, AttributeError: *module* does not have that function.
        UnsupportedFunctionError: It is something else than a function, method or property.
    """
    owner, attribute = _owner(module, name)
    found = inspect.getattr_static(owner, attribute)
    replacement: object = proxy
    if isinstance(found, staticmethod | classmethod):
        replacement = type(found)(proxy)
    elif isinstance(found, property):
        replacement = property(proxy, found.fset, found.fdel)
    elif isinstance(owner, type) and not isinstance(found, FunctionType):
        raise UnsupportedFunctionError(
            f"{name} is a {type(found).__name__}, not a plain method: move what it computes into a "
            "function that it calls"
        )
    places = [other for other, value in vars(owner).items() if value is found]
    if not places:
        raise UnsupportedFunctionError(f"{name} is inherited: name it with the class that has it")
    for place in places:
        setattr(owner, place, replacement)


def _owner(module: ModuleType, name: str) -> tuple[Any, str]:
    *classes, attribute = name.split(".")
    return reduce(getattr, classes, module), attribute


def _plain(found: Any) -> Any:  # noqa: ANN401 - any attribute of a class
    if isinstance(found, staticmethod | classmethod):
        return found.__func__
    return found.fget if isinstance(found, property) else found
