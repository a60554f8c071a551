"""The candidate's side: run it on given arguments, or let an examiner call it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .canonical import UncomparableError, canonical
from .wire import Encoded, UnsendableError, Wire, make_module

CANDIDATE_FILE = "<candidate>"

Function = Callable[..., Any]


def run_calls(
    source: str,
    function: str,
    module: str | None,
    calls: Sequence[tuple[tuple[object, ...], dict[str, object]]],
    writer: int,
    *,
    coverage: bool,
) -> None:
    """Write one line ``[test, kind, result, arguments after, lines run]`` per call."""
    namespace: dict[str, Any] = dict(vars(sys.modules[module])) if module else {"__name__": ""}
    code = compile(source, CANDIDATE_FILE, "exec", dont_inherit=True)
    exec(code, namespace)  # noqa: S102 - the candidate, in its jail
    called = namespace[function]
    for number, (arguments, keywords) in enumerate(calls):
        with _lines_run(coverage) as lines:
            try:
                value = called(*arguments, **keywords)
                kind, result = "value", canonical(value)
            except UncomparableError as error:
                kind, result = "strange", str(error)
            except BaseException as error:  # whatever the candidate raises is its result
                kind, result = "raise", type(error).__name__
        write_line(writer, [number, kind, result, _render(arguments), sorted(lines)])


def serve_calls(
    source: str, function: str, module: str, asked: int, answers: int, *, coverage: bool
) -> None:
    """Answer an examiner's calls, one line of JSON each, until it ends.

    An answer holds ``value`` or ``raise``, ``after`` (the arguments, where the call has changed
    them) and ``lines``.
    """
    made = make_module(module, source, CANDIDATE_FILE)
    called, wire = vars(made)[function], Wire(made)
    with os.fdopen(asked, "rb", closefd=False) as questions:
        for line in questions:
            question = json.loads(line)
            write_line(answers, _answer(called, wire, question, coverage))


def _answer(called: Function, wire: Wire, question: Encoded, coverage: bool) -> dict[str, object]:
    arguments, keywords = wire.decode(question)
    answer: dict[str, object] = {}
    with _lines_run(coverage) as lines:
        try:
            answer["value"] = wire.encode(called(*arguments, **keywords))
        except UnsendableError as error:
            answer["strange"] = str(error)
        except BaseException as error:  # whatever the candidate raises is its result
            answer["raise"] = wire.encode_error(error)
    try:
        after = wire.encode((arguments, keywords))
        if after != question:
            answer["after"] = after
    except UnsendableError as error:  # the candidate put something strange into an argument
        answer = {"strange": str(error)}
    return answer | {"lines": sorted(lines)}


@contextmanager
def _lines_run(coverage: bool) -> Iterator[set[int]]:
    """Collect the candidate's lines run in the block; none unless asked for."""
    lines: set[int] = set()

    def trace(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - settrace's own
        if frame.f_code.co_filename != CANDIDATE_FILE:
            return None
        if event == "line":
            lines.add(frame.f_lineno)
        return trace

    if coverage:
        sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(None)


def write_line(descriptor: int, message: object) -> None:
    """Write *message* as one line of JSON."""
    data = memoryview(json.dumps(message).encode() + b"\n")
    while data:
        data = data[os.write(descriptor, data) :]


def _render(arguments: tuple[object, ...]) -> str:
    try:
        return canonical(arguments)
    except UncomparableError:  # the candidate put something strange into an argument
        return "?"
