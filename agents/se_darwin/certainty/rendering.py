"""Calls and their results as a person writes them."""

from __future__ import annotations

import ast
import cmath
import json
import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from typing import Any

from agents.se_darwin.certainty.canonical_python import as_python
from agents.se_darwin.fork_server.wire import MESSAGE_MARK, Call, Message
from agents.se_darwin.sandbox import Output


def render_call(function: str, call: Call) -> str:
    """Return *call* as Python, as far as it can be written on one line.

    Objects are written as if their class took its fields as keywords. A method is called on its
    object.
    """
    values = _Values(call["values"])
    arguments = [values.render(root) for root in call["values"]["roots"]]
    places = len(arguments) - len(call["names"])
    named = [f"{name}={text}" for name, text in zip(call["names"], arguments[places:], strict=True)]
    plain = arguments[:places]
    owner, _, name = function.rpartition(".")
    if owner and plain and values.is_instance(call["values"]["roots"][0]):
        function = f"{plain.pop(0)}.{name}"
    return f"{function}({', '.join([*plain, *named])})"


def render_result(output: Output | None) -> str:
    """Return what a call did, as the predicate of a sentence."""
    if output is None:
        return "does not end in time"
    if output.kind == "raise":
        return f"raises {output.text}"
    if output.kind == "strange":
        return f"returns something that cannot be compared ({output.text})"
    return f"returns {_render_value(output.text)}"


def render_arguments(output: Output) -> str:
    """Return the arguments after a call."""
    return _render_value(output.arguments)


def _render_value(text: str) -> str:
    if not text.startswith(MESSAGE_MARK):
        return as_python(text)
    message: Message = json.loads(text.removeprefix(MESSAGE_MARK))
    return _Values(message).render(message["roots"][0])


class _Values:
    """The values of one message."""

    def __init__(self, message: Message) -> None:
        self._nodes = {node[0]: node for node in message["nodes"]}
        self._open: set[int] = set()

    def is_instance(self, reference: Any) -> bool:  # noqa: ANN401 - JSON
        """Whether *reference* is an object of one of the program's classes."""
        return (
            isinstance(reference, list)
            and reference[0] == "object"
            and self._nodes[reference[1]][1] in ("instance", "named tuple", "enum", "flag")
        )

    def render(self, reference: Any) -> str:  # noqa: ANN401 - JSON
        """Return a value as Python; ``...`` stands for a part that contains itself."""
        if not isinstance(reference, list):
            return repr(reference)
        tag, value = reference
        if tag != "object":
            return _INLINE.get(tag, str)(value)
        if value in self._open:
            return "..."
        self._open.add(value)
        try:
            _, tag, extra, parts = self._nodes[value]
            items = [self.render(part) for part in parts]
        finally:
            self._open.discard(value)
        if tag in _NODES:
            return _NODES[tag](extra, items)
        return f"{tag}({', '.join(items)})"


def _pairs(items: list[str]) -> str:
    pairs = (f"{key}: {item}" for key, item in zip(items[::2], items[1::2], strict=True))
    return f"{{{', '.join(pairs)}}}"


def _instance(extra: Any, items: list[str]) -> str:  # noqa: ANN401 - JSON
    name, fields = extra
    named = (f"{field}={item}" for field, item in zip(fields, items, strict=True))
    return f"{_bare(name)}({', '.join(named)})"


def _bare(name: str) -> str:
    """A class's name without the module of the program's own that defines it."""
    return name.rpartition(":")[2]


def _float(text: str) -> str:
    value = float.fromhex(text)
    return repr(value) if math.isfinite(value) else f"float('{value}')"


def _complex(text: str) -> str:
    return text if cmath.isfinite(complex(text)) else f"complex('{text.strip('()')}')"


def _defaultdict(factory: str | None, items: list[str]) -> str:
    return f"defaultdict({None if factory is None else _bare(factory)}, {_pairs(items)})"


def _moment(kind: type[date | time], items: list[str]) -> str:
    """A date, a time or both; *items* are its state as pickle writes it, and its time zone."""
    state: bytes = ast.literal_eval(items[0])
    text = _unqualified(kind(state))  # type: ignore[call-arg, arg-type]  # as unpickling calls it
    return f"{text[:-1]}, tzinfo={items[1]})" if items[1:] else text


def _timedelta(_: Any, items: list[str]) -> str:  # noqa: ANN401 - JSON
    return _unqualified(timedelta(*map(int, items)))


def _timezone(_: Any, items: list[str]) -> str:  # noqa: ANN401 - JSON
    is_utc = items == [_unqualified(timedelta())]
    return "timezone.utc" if is_utc else f"timezone({', '.join(items)})"


def _unqualified(value: object) -> str:
    return repr(value).removeprefix("datetime.")


_INLINE: dict[str, Callable[[Any], str]] = {
    "float": _float,
    "complex": _complex,
    "int": lambda text: str(int(text, 16)),
    "bytes": lambda text: repr(bytes.fromhex(text)),
    "Decimal": lambda text: f"Decimal('{text}')",
    "global": _bare,
}
_NODES: dict[str, Callable[[Any, list[str]], str]] = {
    "list": lambda _, items: f"[{', '.join(items)}]",
    "tuple": lambda _, items: f"({', '.join(items)}{',' * (len(items) == 1)})",
    "set": lambda _, items: f"{{{', '.join(items)}}}" if items else "set()",
    "frozenset": lambda _, items: f"frozenset([{', '.join(items)}])",
    "deque": lambda _, items: f"deque([{', '.join(items)}])",
    "iterator": lambda _, items: f"iter([{', '.join(items)}])",
    "dict": lambda _, items: _pairs(items),
    "OrderedDict": lambda _, items: f"OrderedDict({_pairs(items)})",
    "Counter": lambda _, items: f"Counter({_pairs(items)})",
    "defaultdict": _defaultdict,
    "bytearray": lambda extra, _: f"bytearray({bytes.fromhex(extra)!r})",
    "date": lambda _, items: _moment(date, items),
    "datetime": lambda _, items: _moment(datetime, items),
    "time": lambda _, items: _moment(time, items),
    "timedelta": _timedelta,
    "timezone": _timezone,
    "instance": _instance,
    "named tuple": lambda extra, items: f"{_bare(extra)}({', '.join(items)})",
    "enum": lambda extra, _: f"{_bare(extra[0])}.{extra[1]}",
    "flag": lambda extra, items: f"{_bare(extra)}({', '.join(items)})",
}
