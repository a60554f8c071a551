"""The candidate's process: run it on given arguments, or serve the calls of a suite runner."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from .canonical import UncomparableError, canonical
from .given_modules import import_program, module_names
from .in_process_candidate import CANDIDATE_FILE, covered_lines
from .place import find_function
from .wire import MESSAGE_MARK, Call, Message, ProgramNames, UnsendableError, Wire

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
    """Write a line ``[test, kind, result, arguments after the call, lines run]`` per call."""
    namespace: dict[str, Any] = dict(vars(sys.modules[module])) if module else {"__name__": ""}
    code = compile(source, CANDIDATE_FILE, "exec", dont_inherit=True)
    exec(code, namespace)  # noqa: S102 - the candidate, in the sandbox
    called = namespace[function]
    for number, (arguments, keywords) in enumerate(calls):
        with covered_lines(coverage) as lines:
            try:
                value = _completed(called(*arguments, **keywords))
                kind, result = "value", canonical(value)
            except UncomparableError as error:
                kind, result = "strange", str(error)
            except BaseException as error:  # the exception is the candidate's result
                kind, result = "raise", type(error).__name__
        write_line(writer, [number, kind, result, _render(arguments), sorted(lines)])


def serve_calls(
    source: str,
    function: str,
    module: str,
    own_modules: Mapping[str, str],
    pipes: tuple[int, int],
    *,
    coverage: bool,
) -> None:
    """Answer a suite runner's calls, one line of JSON each, until it closes the pipe.

    *own_modules* are the sources of the modules of its own that the program may import; *pipes* are
    the descriptors of the calls and of the answers.

    An answer has ``sent`` (what the call returned, if anything, and the arguments, as far as they
    changed), ``raise`` or ``strange`` (what cannot be sent), and ``lines``.
    """
    made = import_program(module, source, CANDIDATE_FILE, own_modules)
    calls, answers = pipes
    program = ProgramNames(made, module_names(own_modules))
    called, wire = find_function(made, function), Wire(program, first=1)
    with os.fdopen(calls, "rb", closefd=False) as lines:
        for line in lines:
            write_line(answers, _answer(called, wire, json.loads(line), coverage))


def replay_calls(
    source: str,
    function: str,
    place: tuple[str | None, str],
    own_modules: Mapping[str, str],
    calls: Sequence[Call],
    writer: int,
) -> None:
    """Write a line as `run_calls` does for each of *calls*, which another process encoded.

    Args:
        source: Program that defines *function*.
        function: Name of the function, also ``Class.method``.
        place: Module whose names the program sees, if any, and the program's own name.
        own_modules: Sources of the modules of its own that the program may import.
        calls: Calls; none of them sees what another one did to its arguments.
        writer: Descriptor to write to.
    """
    known, name = place
    if known is None:
        made = import_program(name, source, CANDIDATE_FILE, own_modules)
    else:
        made = ModuleType(name)
        vars(made).update(vars(sys.modules[known]))
        exec(compile(source, CANDIDATE_FILE, "exec", dont_inherit=True), vars(made))  # noqa: S102 - in the sandbox
    called, program = find_function(made, function), ProgramNames(made, module_names(own_modules))
    for number, call in enumerate(calls):
        given = Wire(program).decode(call["values"])
        places = len(given) - len(call["names"])
        keywords = dict(zip(call["names"], given[places:], strict=True))
        try:
            value = _completed(called(*given[:places], **keywords))
            kind, result = "value", _describe(value, program)
        except UnsendableError as error:
            kind, result = "strange", str(error)
        except BaseException as error:  # the exception is the candidate's result
            kind, result = "raise", type(error).__name__
        try:
            after = _describe(given, program)
        except (UnsendableError, RecursionError):
            after = "?"
        write_line(writer, [number, kind, result, after, []])


def _describe(value: object, program: ProgramNames) -> str:
    """Canonical text; of a value that contains objects of the program, the message that sends it.

    Raises:
        UnsendableError: It contains something else.
    """
    try:
        return canonical(value)
    except UncomparableError:
        return MESSAGE_MARK + json.dumps(Wire(program).encode(value))


def _answer(called: Function, wire: Wire, call: Call, coverage: bool) -> dict[str, object]:
    given = wire.decode(call["values"])
    places = len(given) - len(call["names"])
    arguments, keywords = given[:places], dict(zip(call["names"], given[places:], strict=True))
    answer: dict[str, object] = {}
    sent: Message = {}
    with covered_lines(coverage) as lines:
        try:
            value = called(*arguments, **keywords)
            sent = wire.encode(_completed(value) if call["awaited"] else value, *given)
        except UnsendableError as error:
            answer["strange"] = str(error)
        except BaseException as error:  # the exception is the candidate's result
            answer["raise"] = wire.encode_error(error)
    if not sent:
        try:
            sent = wire.encode(*given)
        except UnsendableError as error:  # the candidate put such a value into an argument
            return {"strange": str(error), "lines": sorted(lines)}
    known = {node[0]: node for node in call["values"]["nodes"]}
    sent["nodes"] = [node for node in sent["nodes"] if known.get(node[0]) != list(node)]
    return answer | {"sent": sent, "lines": sorted(lines)}


@contextmanager
def own_state(*, is_last: bool = True) -> Iterator[None]:
    """Give the block random numbers of its own; undo what it does to imported modules and finders.

    What it does inside modules that were imported before remains. Unless it *is_last* in this
    process, modules that it imports are forgotten. To look at all modules costs more than to fork:
    each has a page that the process shares until it counts a reference there.
    """
    modules = None if is_last else dict(sys.modules)
    finders, limit = list(sys.meta_path), sys.getrecursionlimit()
    if (loops := event_loops()) is not None:
        loops.begin()
    if "random" in sys.modules:
        # A process that is forked would draw others each time.
        sys.modules["random"].seed(hash("seed") if sys.flags.hash_randomization else 0)
    try:
        yield
    finally:
        sys.settrace(None)
        if modules is not None:
            sys.modules.clear()
            sys.modules.update(modules)
        sys.meta_path[:] = finders
        sys.setrecursionlimit(limit)


def event_loops() -> Any:  # noqa: ANN401 - a module
    """Return the module `virtual_loop`; None if the server has not imported it."""
    return sys.modules.get(f"{__package__}.virtual_loop")


def _completed(value: object) -> object:
    """Return *value*, or what it is when it has been awaited."""
    loops = event_loops()
    return value if loops is None else loops.completed(value)


def write_line(descriptor: int, message: object) -> None:
    """Write *message* as one line of JSON."""
    write_bytes(descriptor, json.dumps(message).encode() + b"\n")


def write_bytes(descriptor: int, content: bytes) -> None:
    """Write all of *content*."""
    data = memoryview(content)
    while data:
        data = data[os.write(descriptor, data) :]


def _render(arguments: tuple[object, ...]) -> str:
    try:
        return canonical(arguments)
    except UncomparableError:  # the candidate put such a value into an argument
        return "?"
