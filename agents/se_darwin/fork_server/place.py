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
    member = inspect.getattr_static(owner, attribute)
    function: Callable[..., Any] = _plain(member)
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
    member = inspect.getattr_static(owner, attribute)
    replacement: object = proxy
    if isinstance(member, staticmethod | classmethod):
        replacement = type(member)(proxy)
    elif isinstance(member, property):
        replacement = property(proxy, member.fset, member.fdel)
    elif isinstance(owner, type) and not isinstance(member, FunctionType):
        raise UnsupportedFunctionError(
            f"{name} is a {type(member).__name__}, not a plain method: move what it computes into "
            "a function that it calls"
        )
    if vars(owner).get(attribute) is not member:
        raise UnsupportedFunctionError(f"{name} is inherited: name it with the class that has it")
    for holder in (owner, *others):
        for place in [key for key, value in vars(holder).items() if value is member]:
            setattr(holder, place, replacement)
    for holder in (module, *others):
        for table in list(vars(holder).values()):
            _replace_items(table, member, replacement)


def _replace_items(table: object, member: object, replacement: object) -> None:
    if type(table) is dict:
        for key in [key for key, value in table.items() if value is member]:
            table[key] = replacement
    elif type(table) is list:
        table[:] = [replacement if value is member else value for value in table]


def _owner(module: ModuleType, name: str) -> tuple[Any, str]:
    *classes, attribute = name.split(".")
    return reduce(getattr, classes, module), attribute


def _plain(member: Any) -> Any:  # noqa: ANN401 - any attribute of a class
    if isinstance(member, staticmethod | classmethod):
        return member.__func__
    return member.fget if isinstance(member, property) else member
