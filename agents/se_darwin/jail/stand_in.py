"""What stands in the examiner's process for the function under repair."""

from __future__ import annotations

import json
import os
from typing import Any

from .canonical import UncomparableError
from .wire import UnsendableError, Wire

UNSENDABLE = "an argument does not reach the candidate"
UNREACHABLE = "a candidate can be called only"
MAX_ANSWER_BYTES = 1 << 22


class CandidateLostError(BaseException):
    """The candidate gave no answer, or none that can be read: nothing more can be examined."""


class UnreachableAttributeError(AttributeError, UncomparableError):
    """A test asks for more of the function than to be called.

    Args:
        name: The attribute, as the test writes it.
    """

    def __init__(self, name: str) -> None:
        AttributeError.__init__(self, f"{UNREACHABLE}: {name}")


class UnsendableArgumentError(UncomparableError):
    """A test calls the candidate with something that is not plain data.

    Args:
        error: Says what.
    """

    def __init__(self, error: UnsendableError) -> None:
        TypeError.__init__(self, f"{UNSENDABLE}: {error}")


class UnsendableResultError(UncomparableError):
    """What came of a call is not plain data.

    Args:
        what: The candidate's words.
    """

    def __init__(self, what: str) -> None:
        text = "what it returns, or leaves in its arguments, does not reach the tests"
        TypeError.__init__(self, f"{text}: {what}")


class StandIn:
    """Calls the function in the candidate's process.

    Args:
        name: Name of the function.
        wire: Encodes arguments, decodes results.
        asked: Descriptor to which calls are written.
        answers: Descriptor from which their results are read.
    """

    def __init__(self, name: str, wire: Wire, asked: int, answers: int) -> None:
        self.__name__ = self.__qualname__ = name
        self._wire, self._asked, self._answers = wire, asked, answers
        self._read = b""
        self._lines: set[int] = set()

    def __call__(self, *arguments: object, **keywords: object) -> object:
        """Call the candidate; arguments that it changed are changed here too.

        Raises:
            UnsendableArgumentError, UnsendableResultError: An argument, or what came of the call,
                is not plain data.
            CandidateLostError: There is no readable answer.
            BaseException: Whatever the candidate raised.
        """
        try:
            question = self._wire.encode((arguments, keywords))
        except UnsendableError as error:
            raise UnsendableArgumentError(error) from None
        self._send(json.dumps(question).encode() + b"\n")
        try:
            answer = json.loads(self._read_line())
            self._lines.update(answer["lines"])
            if "after" in answer:
                places, names = self._wire.decode(answer["after"])
                _change([*arguments, *keywords.values()], [*places, *names.values()])
            if "strange" in answer:
                raised: BaseException = UnsendableResultError(str(answer["strange"]))
            elif "raise" in answer:
                raised = self._wire.decode_error(*answer["raise"])
            else:
                return self._wire.decode(answer["value"])
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise CandidateLostError from error
        raise raised

    def __getattr__(self, name: str) -> object:
        """Say that a candidate has no attributes here, such as ``cache_clear``.

        Raises:
            UnreachableAttributeError: Always.
        """
        raise UnreachableAttributeError(f"{self.__name__}.{name}")

    def take_lines(self) -> set[int]:
        """Lines run since the last time this was asked."""
        lines, self._lines = self._lines, set()
        return lines

    def _send(self, line: bytes) -> None:
        data = memoryview(line)
        try:
            while data:
                data = data[os.write(self._asked, data) :]
        except OSError as error:
            raise CandidateLostError from error

    def _read_line(self) -> bytes:
        while b"\n" not in self._read:
            part = os.read(self._answers, 1 << 16)
            if not part or len(self._read) > MAX_ANSWER_BYTES:
                raise CandidateLostError
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        return line


def _change(owned: list[Any], changed: list[Any]) -> None:
    """Give the caller's own containers the contents that the candidate left in its copies."""
    for mine, theirs in zip(owned, changed, strict=True):
        if isinstance(mine, list | bytearray):
            mine[:] = theirs
        elif isinstance(mine, set | dict):
            mine.clear()
            mine.update(theirs)
        elif hasattr(mine, "__dict__") and type(mine) is type(theirs):
            vars(mine).clear()
            vars(mine).update(vars(theirs))
