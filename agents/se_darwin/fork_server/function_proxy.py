"""Proxy for the function under repair: the tests call it, the candidate's process runs it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType

from .canonical import UncomparableError
from .wire import Call, UnsendableError, Wire

NO_ATTRIBUTES = "a candidate can only be called"
MAX_ANSWER_BYTES = 1 << 22
MAX_CALLS = 50
"""Number of calls that are kept of those made for one check."""
_UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)
_MARK = "raised_by_candidate"  # attribute of an exception


class CandidateLostError(BaseException):
    """The candidate sent no readable answer, so no further check can run."""


class ProxyAttributeError(AttributeError, UncomparableError):
    """A test reads an attribute of the function under repair.

    Args:
        name: Attribute as the test writes it.
    """

    def __init__(self, name: str) -> None:
        AttributeError.__init__(self, f"{NO_ATTRIBUTES}: {name}")


class UnsendableArgumentError(UncomparableError):
    """A test calls the candidate with an argument that is not plain data.

    Args:
        error: Describes the argument.
    """

    def __init__(self, error: UnsendableError) -> None:
        TypeError.__init__(self, f"an argument cannot be sent to the candidate: {error}")


class UnsendableResultError(UncomparableError):
    """A call returns something that is not plain data, or leaves it in an argument.

    Args:
        problem: The candidate process's description of it.
    """

    def __init__(self, problem: str) -> None:
        text = "what it returns, or leaves in its arguments, cannot be sent to the tests"
        TypeError.__init__(self, f"{text}: {problem}")


class FunctionProxy:
    """Calls the function in the candidate's process.

    Args:
        name: Name of the function.
        wire: Encodes arguments, decodes results.
        calls: Descriptor to which calls are written.
        answers: Descriptor from which their results are read.
        is_coroutine: Whether calls return something to await, as those of an ``async def`` do.

    Attributes:
        keeps_calls: Whether to keep calls for `take_calls`.
    """

    def __init__(
        self, name: str, wire: Wire, calls: int, answers: int, *, is_coroutine: bool = False
    ) -> None:
        self.__name__ = self.__qualname__ = name
        self._wire, self._calls, self._answers = wire, calls, answers
        self._is_coroutine_function = is_coroutine
        self._buffer = b""
        self._lines: set[int] = set()
        self.keeps_calls = False
        self._made: list[Call] = []

    def __call__(self, *arguments: object, **keywords: object) -> object:
        """Call the candidate, now or, if it is asynchronous, when the result is awaited."""
        if self._is_coroutine_function:
            return self._await(arguments, keywords)
        return self._ask(arguments, keywords)

    async def _await(self, arguments: tuple[object, ...], keywords: dict[str, object]) -> object:
        return self._ask(arguments, keywords)

    def _ask(self, arguments: tuple[object, ...], keywords: dict[str, object]) -> object:
        """Call the candidate; its changes of the arguments are made in the caller's objects, too.

        Raises:
            UnsendableArgumentError, UnsendableResultError: An argument, or the result, is not plain
                data.
            CandidateLostError: There is no readable answer.
            BaseException: The candidate raised it.
        """
        try:
            values = self._wire.encode(*arguments, *keywords.values())
        except UnsendableError as error:
            raise UnsendableArgumentError(error) from None
        call: Call = {
            "values": values,
            "names": list(keywords),
            "awaited": self._is_coroutine_function,
        }
        if self.keeps_calls and len(self._made) < MAX_CALLS:
            self._made.append(call)
        self._send(json.dumps(call).encode() + b"\n")
        try:
            answer = json.loads(self._read_line())
            self._lines.update(map(int, answer["lines"]))
            returned = self._wire.decode(answer["sent"]) if "sent" in answer else []
            if "strange" in answer:
                raised: BaseException = UnsendableResultError(str(answer["strange"]))
            elif "raise" in answer:
                raised = self._wire.decode_error(*answer["raise"])
            else:
                return returned[0]
        except _UNREADABLE as error:
            raise CandidateLostError from error
        vars(raised)[_MARK] = True
        raise raised

    def __get__(self, instance: object, owner: type | None = None) -> object:
        """Bind to *instance*, as a function does that is an attribute of its class."""
        return self if instance is None else MethodType(self, instance)

    def __getattr__(self, name: str) -> object:
        """Refuse attributes such as ``cache_clear``: only the call is forwarded.

        Raises:
            ProxyAttributeError: Always.
        """
        raise ProxyAttributeError(f"{self.__name__}.{name}")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Do nothing: the candidate's process says with each answer which lines ran."""
        yield

    def has_raised(self, error: BaseException) -> bool:
        """Whether *error* was raised by a call of the candidate, not by the tests."""
        return _MARK in vars(error)

    def take_covered_lines(self) -> set[int]:
        """Return the lines that ran since the last call of this method, and forget them."""
        lines, self._lines = self._lines, set()
        return lines

    def grant_time(self) -> None:
        """Do nothing: in a process of its own the candidate has the time of the process."""

    def own_equality(self, *values: object) -> None:
        """Return None: the wire makes no object of a class that the candidate has added."""

    def take_calls(self) -> list[Call]:
        """Return the calls made since the last call of this method, at most `MAX_CALLS`."""
        calls, self._made = self._made, []
        return calls

    def _send(self, line: bytes) -> None:
        data = memoryview(line)
        try:
            while data:
                data = data[os.write(self._calls, data) :]
        except OSError as error:
            raise CandidateLostError from error

    def _read_line(self) -> bytes:
        while b"\n" not in self._buffer:
            part = os.read(self._answers, 1 << 16)
            if not part or len(self._buffer) > MAX_ANSWER_BYTES:
                raise CandidateLostError
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line
