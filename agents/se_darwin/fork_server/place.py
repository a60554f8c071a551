"""Where the function under repair is: a global of the program, or a method of a class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
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


def replace_function(
    module: ModuleType, name: str, proxy: Callable[..., Any], others: Sequence[ModuleType] = ()
) -> None:
    """Put *proxy* in the place of the function *name*, and wherever else it is kept.

    Other places are other names in its module or class, names in the modules *others*, and the
    items of lists and dictionaries that are globals of these modules.

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
    if vars(owner).get(attribute) is not found:
        raise UnsupportedFunctionError(f"{name} is inherited: name it with the class that has it")
    for each in (owner, *others):
        for place in [other for other, value in vars(each).items() if value is found]:
            setattr(each, place, replacement)
    for each in (module, *others):
        for table in list(vars(each).values()):
            _replace_items(table, found, replacement)


def _replace_items(table: object, found: object, replacement: object) -> None:
    if type(table) is dict:
        for key in [key for key, value in table.items() if value is found]:
            table[key] = replacement
    elif type(table) is list:
        table[:] = [replacement if value is found else value for value in table]


def _owner(module: ModuleType, name: str) -> tuple[Any, str]:
    *classes, attribute = name.split(".")
    return reduce(getattr, classes, module), attribute


def _plain(found: Any) -> Any:  # noqa: ANN401 - any attribute of a class
    if isinstance(found, staticmethod | classmethod):
        return found.__func__
    return found.fget if isinstance(found, property) else found
