"""A bug, and its tests as text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from agents.se_darwin.corpus.draws import Arguments

MODULE = "program"
"""Name by which the tests import the program."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignBug:
    """Attributes:
    source: Name of the source; one of `benchmarks.se_darwin.foreign.sources.SOURCES`.
    name: Name within the source.
    code: Text of the wrong program, the module ``program``.
    function: Name of its function to repair.
    test_code: Test module that the search sees.
    hidden_test_code: Test module that a repair must pass to be right; the search never sees it.
    right_code: Text of a right program; empty if none is known.
    """

    source: str
    name: str
    code: str
    function: str
    test_code: str
    hidden_test_code: str
    right_code: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of all texts, in hexadecimal digits."""
        return hashlib.sha256("\0".join(asdict(self).values()).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class CallResult:
    """A call, and the value that it must return or the exception that it must raise.

    Attributes:
        call: Text of the call.
        expected: Text of the value, or name of the exception.
        raises: Whether the call must raise.
    """

    call: str
    expected: str
    raises: bool = False


def call_text(function: str, arguments: Arguments) -> str:
    """Return the text of a call of *function*."""
    return f"{function}({', '.join(map(repr, arguments))})"


def pytest_module(function: str, results: Sequence[CallResult], imports: Iterable[str] = ()) -> str:
    """Return a test module in the style of pytest: one test of the values, one per exception."""
    lines = [*imports]
    if any(result.raises for result in results):
        lines.append("import pytest")
    lines += [f"from {MODULE} import {function.partition('.')[0]}", "", ""]
    plain = function.replace(".", "_").strip("_")
    values = [result for result in results if not result.raises]
    if values:
        lines.append(f"def test_{plain}():")
        lines += [f"    assert {result.call} == {result.expected}" for result in values]
    for number, result in enumerate((each for each in results if each.raises), 1):
        lines += ["", "", f"def test_{plain}_raises_{number}():"]
        lines += [f"    with pytest.raises({result.expected}):", f"        {result.call}"]
    return "\n".join(lines).replace("\n\n\n\n", "\n\n\n") + "\n"
