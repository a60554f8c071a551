"""Text of a value, to compare what two versions of a statement leave behind.

Unlike canonical text it also describes functions, methods and objects: these by
their class and fields.
"""

from __future__ import annotations

from contextlib import suppress
from opcode import opmap
from types import FunctionType, MethodType

from .canonical import UncomparableError, canonical
from .object_fields import fields_of

_MAX_DEPTH = 8
_MOST_PARTS = 1000
_RAISE = opmap["RAISE_VARARGS"]


def value_text(value: object, depth: int = 0) -> str:
    """Return text that is equal for equal values, also of objects: by class and fields.

    Raises:
        ValueError: A value has no such text.
    """
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    with suppress(UncomparableError, RecursionError):
        return canonical(value)
    kind, deeper = type(value).__name__, depth + 1
    if isinstance(value, FunctionType | type):
        return f"{kind} {value.__qualname__}"
    if isinstance(value, MethodType):
        return f"{value.__name__} of {value_text(value.__self__, deeper)}"
    if isinstance(value, list | tuple):
        return f"{kind}[{', '.join(value_text(item, deeper) for item in value)}]"
    if isinstance(value, set | frozenset):
        return f"{kind}{{{', '.join(sorted(value_text(item, deeper) for item in value))}}}"
    table = value if isinstance(value, dict) else fields_of(value)
    if not table and not isinstance(value, dict):
        raise ValueError(f"a {kind} has no fields, so it may be anything")
    pairs = [
        f"{value_text(key, deeper)}: {value_text(item, deeper)}" for key, item in table.items()
    ]
    return f"{kind}({', '.join(sorted(pairs))})"


def sharing(value: object) -> str:
    """Return where *value* contains a list, dictionary or set again; empty if it does not.

    Two values of equal text differ in it if a change of one part changes another part of one only.
    """
    numbers: dict[int, int] = {}
    again: list[str] = []
    waiting = [value]
    while waiting and len(numbers) < _MOST_PARTS:
        part = waiting.pop()
        if isinstance(part, list | dict | set):
            if id(part) in numbers:
                again.append(f"{len(numbers)}={numbers[id(part)]}")
                continue
            numbers[id(part)] = len(numbers)
        if isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part
    return f" shared {' '.join(again)}" if again else ""


def error_text(error: BaseException) -> str:
    """Return the name of *error*, and its arguments if the program chose them."""
    name, trace = type(error).__name__, error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    is_raised = trace is not None and trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE
    if is_raised or isinstance(error, SystemExit):
        with suppress(Exception):  # an argument without text
            name = f"{name} {value_text(error.args)}"
    return name
