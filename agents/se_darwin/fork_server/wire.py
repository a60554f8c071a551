"""Encoding of values between the suite runner's process and the candidate's: plain data, no code.

Values are sent as a graph of objects, so that two processes agree on which of them are the same
object, as ``is`` tells them apart, and so that depth and cycles do not matter. An object keeps its
number for later calls; each message brings the contents of what it refers to up to date.

Not pickle: a candidate writes these bytes, and they must not be able to change what the suite
runner's own classes do.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any, TypedDict

from .canonical import MAX_ITEMS
from .object_fields import fields_of, set_fields

MAX_NODES = 200_000
"""Maximum number of objects in a message."""

MAX_KNOWN = 50_000
"""Number of objects known to both processes after which they forget them all."""

MESSAGE_MARK = "@"
"""Beginning of a text that is a message in JSON; no canonical text begins with it."""

_BY_TEXT: dict[type, Callable[[Any], str]] = {float: float.hex, complex: repr, Decimal: str}
_BY_TEXT |= {bytes: bytes.hex, int: hex}
_FROM_TEXT: dict[str, Callable[[str], object]] = {
    "float": float.fromhex,
    "complex": complex,
    "Decimal": Decimal,
    "bytes": bytes.fromhex,
    "int": lambda text: int(text, 16),
}
_SMALL = 1 << 53  # integers below are written as JSON's own
_MAPPINGS: dict[str, type[dict[Any, Any]]] = {
    kind.__name__: kind for kind in (dict, OrderedDict, Counter, defaultdict)
}
_MUTABLE: dict[str, Callable[[], object]] = {"list": list, "set": set, "deque": deque, **_MAPPINGS}
_MUTABLE["bytearray"] = bytearray
_IMMUTABLE: dict[str, Callable[[list[Any]], object]] = {"tuple": tuple, "frozenset": frozenset}
_IMMUTABLE["iterator"] = iter
_BY_ARGUMENTS = {
    kind.__name__: kind for kind in (range, Fraction, date, datetime, time, timedelta, timezone)
}
_FACTORIES = {kind.__name__: kind for kind in (list, dict, set, int, float, str, tuple, bool)}

Reference = None | bool | int | str | list[Any]
"""A value without parts, or ``["object", number]``."""

Node = tuple[int, str, Any, list[Reference]]
"""Number, kind, what the kind needs besides, and the parts of one object."""


class Message(TypedDict, total=False):
    """Values in transit.

    In *nodes* an object follows its parts, except in a cycle. With *forget* the objects of earlier
    messages are forgotten first.
    """

    roots: list[Reference]
    nodes: list[Any]
    forget: bool


class Call(TypedDict):
    """A call of the function: the values of its arguments, and the names of the last of them.

    If it is *awaited*, the result is that of the coroutine which the function returns.
    """

    values: Message
    names: list[str]
    awaited: bool


class UnsendableError(TypeError):
    """A value that cannot be passed between two processes.

    Args:
        value: The value.
    """

    def __init__(self, value: object) -> None:
        super().__init__(f"a {type(value).__name__} is not plain data")


class ProgramNames:
    """Names of what the program's module, and the modules of its own that it imports, contain.

    Args:
        module: The program's module in this process.
        own_modules: Names of its own modules, which need not be imported yet.
    """

    def __init__(self, module: ModuleType, own_modules: Sequence[str] = ()) -> None:
        self._module = module
        self._others = [name for name in own_modules if name != module.__name__]

    def find(self, name: str) -> Any:  # noqa: ANN401 - any global
        """Return what *name* is: a global of the program, or ``module:global``.

        Raises:
            LookupError: There is none.
        """
        module, _, attribute = name.rpartition(":")
        if module and module not in self._others:
            raise LookupError(f"{module} is not a module of this program")
        return vars(sys.modules[module] if module else self._module)[attribute]

    def name_of(self, value: object, names: Iterable[str] | None = None) -> str | None:
        """Return the name under which `find` finds *value*, among *names* if given; or None."""
        others = ((f"{name}:", sys.modules.get(name)) for name in self._others)
        for prefix, module in (("", self._module), *others):
            known = {} if module is None else vars(module)
            for name in known if names is None else names:
                if known.get(name) is value:
                    return f"{prefix}{name}"
        return None

    def defines(self, kind: type) -> bool:
        """Whether one of these modules defines the class *kind*."""
        return kind.__module__ == self._module.__name__ or kind.__module__ in self._others


class Wire:
    """Encodes and decodes values of builtin types, a few library types, and the program's classes.

    Objects of classes that the program only imports are refused: the program does not define their
    equality, and some library classes equal anything. Members of an imported enumeration pass,
    because decoding looks them up and creates nothing; so do classes, functions and bare objects
    that are the program's globals, which compare by identity.

    Args:
        program: Resolves names of the program in this process.
        first: 0 in the one process, 1 in the other, so that they give different numbers.
    """

    def __init__(self, program: ProgramNames, first: int = 0) -> None:
        self._program = program
        self._next, self._may_forget = first, first == 0
        self._known: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}  # by id(); `_known` keeps the objects alive

    def encode(self, *values: object) -> Message:
        """Return *values* as something that `json` can write.

        Raises:
            UnsendableError: *values* contain something that is not plain data.
        """
        message: Message = {}
        if self._may_forget and len(self._known) > MAX_KNOWN:
            self._forget()
            message["forget"] = True
        graph = _Graph(self._program, self._numbers, self._next)
        graph.add(values)
        message["roots"] = [graph.reference(value) for value in values]
        message["nodes"] = graph.nodes
        self._next = graph.next_number
        for number, value in graph.new.items():
            self._keep(number, value)
        return message

    def decode(self, message: Message) -> list[Any]:
        """Return the values that `encode` encoded; known objects are changed in place.

        Raises:
            ValueError, TypeError, LookupError, ArithmeticError: *message* was not made by `encode`.
        """
        if message.get("forget"):
            self._forget()
        nodes: list[Node] = message["nodes"]
        for number, tag, extra, _ in nodes:
            if number not in self._known and (made := self._shell(tag, extra)) is not None:
                self._keep(number, made)
        unfilled: list[Node] = []
        for node in nodes:
            number, tag, extra, parts = node
            if number not in self._known:
                made = self._immutable(tag, extra, [self._resolve(part) for part in parts])
                self._keep(number, made)
            elif all(map(self._is_known, parts)):
                self._fill(node)
            else:  # it contains something that contains it
                unfilled.append(node)
        for node in unfilled:
            self._fill(node)
        return [self._resolve(root) for root in message["roots"]]

    def encode_error(self, error: BaseException) -> list[Any]:
        """Return class and arguments of *error*; drop the arguments if they are not plain data."""
        try:
            arguments = self.encode(*error.args)
        except UnsendableError:
            arguments = self.encode()
        return [type(error).__module__, type(error).__qualname__, arguments]

    def decode_error(self, module: str, name: str, arguments: Message) -> BaseException:
        """Return an exception of the named class, or a RuntimeError if it is unknown here."""
        kind = getattr(sys.modules.get(module), name, None)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            kind = RuntimeError
        error = kind.__new__(kind)
        error.args = tuple(self.decode(arguments))
        return error

    def _keep(self, number: int, value: object) -> None:
        self._known[number] = value
        self._numbers[id(value)] = number

    def _forget(self) -> None:
        self._known.clear()
        self._numbers.clear()

    def _is_known(self, reference: Reference) -> bool:
        if isinstance(reference, list) and reference[0] == "object":
            return reference[1] in self._known
        return True

    def _resolve(self, reference: Reference) -> Any:  # noqa: ANN401 - any value at all
        if not isinstance(reference, list):
            return reference
        tag, value = reference
        if tag == "object":
            return self._known[value]
        if tag == "global":
            global_value = self._program.find(value)
            if not compares_by_identity(global_value):
                raise LookupError(f"{value} is not sent by name")
            return global_value
        return _FROM_TEXT[tag](value)

    def _shell(self, tag: str, extra: Any) -> object | None:  # noqa: ANN401 - from JSON
        """A mutable object of that kind, still empty; None if the kind cannot be changed."""
        if tag in _MUTABLE:
            return _MUTABLE[tag]()
        if tag != "instance":
            return None
        kind = self._class(extra[0])
        if issubclass(kind, tuple | Enum):
            raise LookupError(f"{kind.__name__} has no fields")
        made: object = object.__new__(kind)
        return made

    def _immutable(self, tag: str, extra: Any, parts: list[Any]) -> object:  # noqa: ANN401
        if tag in _BY_ARGUMENTS:
            return _BY_ARGUMENTS[tag](*parts)
        if tag == "enum":
            kind = self._program.find(extra[0])
            if not issubclass(kind, Enum):  # raises TypeError if it is not a class
                raise LookupError(f"{extra[0]} is not an enumeration")
            member: Enum = kind[extra[1]]
            return member
        if tag == "flag":
            kind, [value] = self._program.find(extra), parts
            if not (issubclass(kind, Flag) and type(value) is int):
                raise LookupError(f"{extra} is not a flag")
            flag: Flag = kind(value)
            return flag
        if tag == "named tuple":
            kind = self._class(extra)
            if not issubclass(kind, tuple):
                raise LookupError(f"{extra} is not a tuple")
            return tuple.__new__(kind, parts)
        return _IMMUTABLE[tag](parts)

    def _class(self, name: str) -> type[Any]:
        kind: type[Any] = self._program.find(name)
        if not (isinstance(kind, type) and self._program.defines(kind)):
            raise LookupError(f"{name} is not a class of this program")
        return kind

    def _fill(self, node: Node) -> None:
        """Give a known object the contents of *node*, if it can be changed."""
        number, tag, extra, references = node
        value, parts = self._known[number], [self._resolve(reference) for reference in references]
        if tag in _MUTABLE and type(value) is not _MUTABLE[tag]:
            raise TypeError(f"a {type(value).__name__} does not become a {tag}")
        if tag in ("list", "bytearray"):
            value[:] = bytes.fromhex(extra) if tag == "bytearray" else parts
        elif tag in _MAPPINGS:
            value.clear()
            for key, item in zip(parts[::2], parts[1::2], strict=True):
                value[key] = item
            if tag == "defaultdict":
                value.default_factory = None if extra is None else self._factory(extra)
        elif tag in _MUTABLE:
            value.clear()
            (value.update if tag == "set" else value.extend)(parts)
        elif tag == "instance":
            if type(value) is not self._class(extra[0]):
                raise TypeError(f"a {type(value).__name__} does not become a {extra[0]}")
            set_fields(value, dict(zip(extra[1], parts, strict=True)))

    def _factory(self, name: str) -> Any:  # noqa: ANN401 - any callable
        if name in _FACTORIES:
            return _FACTORIES[name]
        return self._resolve(["global", name])


class _Graph:
    """The objects of one message."""

    def __init__(self, program: ProgramNames, numbers: dict[int, int], next_number: int) -> None:
        self._program, self._numbers = program, numbers
        self._own: dict[int, int] = {}
        self.next_number = next_number
        self.new: dict[int, object] = {}
        self.nodes: list[Node] = []

    def add(self, values: tuple[object, ...]) -> None:
        """Add *values* and their parts, each object after its parts.

        Raises:
            UnsendableError: One of them is not plain data.
        """
        seen: set[int] = set()
        open_: list[tuple[object, tuple[str, Any, list[object]] | None]] = []
        open_ += [(value, None) for value in reversed(values)]
        while open_:
            value, opened = open_.pop()
            if opened is not None:
                tag, extra, parts = opened
                references = [self.reference(part) for part in parts]
                self.nodes.append((self._number(value), tag, extra, references))
                continue
            if id(value) in seen or self._inline(value) is not None or value is None:
                continue
            seen.add(id(value))
            opened = self._open(value)
            if len(seen) > MAX_NODES:
                raise UnsendableError(value)
            self._give_number(value)
            open_.append((value, opened))
            open_ += [(part, None) for part in reversed(opened[2])]

    def reference(self, value: object) -> Reference:
        """Return *value* if it has no parts, else a reference to its node."""
        if value is None or (inline := self._inline(value)) is None:
            return None if value is None else ["object", self._number(value)]
        return inline

    def _number(self, value: object) -> int:
        return self._own.get(id(value), self._numbers.get(id(value), -1))

    def _give_number(self, value: object) -> None:
        if id(value) not in self._numbers:
            self._own[id(value)] = self.next_number
            self.new[self.next_number] = value
            self.next_number += 2

    def _inline(self, value: object) -> Reference:
        """Reference to a value without parts; None for others, and for None."""
        kind = type(value)
        if kind is bool or kind is str or (kind is int and -_SMALL < value < _SMALL):  # type: ignore[operator]
            return value  # type: ignore[return-value]  # the types were just checked
        if kind in _BY_TEXT:
            return [kind.__name__, _BY_TEXT[kind](value)]
        if compares_by_identity(value):
            name = self._program.name_of(value)
            return None if name is None else ["global", name]
        return None

    def _open(self, value: Any) -> tuple[str, Any, list[object]]:  # noqa: ANN401 - any value
        """Kind of *value*, what its kind needs besides, and its parts."""
        kind = type(value)
        name = kind.__name__
        if _MAPPINGS.get(name) is kind:
            parts = [part for pair in value.items() for part in pair]
            return name, self._factory(value) if kind is defaultdict else None, parts
        if kind is bytearray:
            return name, value.hex(), []
        if kind in (list, tuple, set, frozenset, deque):
            return name, None, list(value)
        if _BY_ARGUMENTS.get(name) is kind:
            return name, None, list(value.__reduce_ex__(4)[1])
        if isinstance(value, Iterator):
            known = id(value) in self._numbers  # the other process has its own, and goes on there
            return "iterator", None, [] if known else list(islice(value, MAX_ITEMS))
        return self._open_instance(value, kind)

    def _open_instance(self, value: Any, kind: type) -> tuple[str, Any, list[object]]:  # noqa: ANN401
        name = self._program.name_of(kind, [kind.__name__])
        if name is None:
            raise UnsendableError(value)
        if isinstance(value, Flag):  # a combination of members has no name
            return "flag", name, [value.value]
        if isinstance(value, Enum):
            return "enum", [name, value.name], []
        if not self._program.defines(kind):
            raise UnsendableError(value)
        if isinstance(value, tuple):
            return "named tuple", name, list(value)
        try:
            object.__new__(kind)
        except TypeError:  # a class built on another type
            raise UnsendableError(value) from None
        fields = fields_of(value)
        return "instance", [name, list(fields)], list(fields.values())

    def _factory(self, value: defaultdict[Any, Any]) -> str | None:
        factory = value.default_factory
        if factory is None:
            return None
        for name, known in _FACTORIES.items():
            if known is factory:
                return name
        inline = self._inline(factory)
        if not (isinstance(inline, list) and inline[0] == "global"):
            raise UnsendableError(factory)
        return str(inline[1])


def compares_by_identity(value: object) -> bool:
    """Whether *value* is a class, a function or a bare object: equal to nothing but itself."""
    return type(value) in (type, FunctionType, object)
