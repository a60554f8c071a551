"""A clean interpreter that forks one confined child per candidate.

Frames on standard input and output: four bytes of length, then JSON. The candidates' expected
results never come here: children send what they computed, and the parent compares.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypedDict

from .canonical import UncomparableError, canonical
from .confinement import (
    die_with_parent,
    drop_user,
    enter_landlock,
    enter_namespaces,
    forbid_tracing,
    limit_resources,
)

MAX_OUTPUT_BYTES = 1 << 20
CANDIDATE_FILE = "<candidate>"

_Arguments = tuple[tuple[object, ...], dict[str, object]]


class Request(TypedDict):
    """One batch. *module*, if any, lends its namespace; *tests* is a literal of argument pairs."""

    sources: list[str]
    function: str
    module: str | None
    tests: str
    coverage: bool
    parallel: int
    memory_bytes: int
    cpu_seconds: float
    wall_seconds: float


@dataclass(slots=True)
class _Child:
    """A candidate under way."""

    index: int
    pid: int
    deadline: float
    output: bytearray = field(default_factory=bytearray)
    late: bool = False


def main() -> None:
    """Import, confine, report the layers, then serve until standard input ends."""
    modules = json.loads(sys.argv[2])
    missing = [name for name in modules if not _importable(name)]
    base_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    requests, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    layers = {"namespaces": enter_namespaces()}
    _become_first_process(requests, answers)
    layers["user"] = drop_user()
    die_with_parent()  # again: a change of user forgets it
    layers["landlock"] = enter_landlock()
    forbid_tracing()
    gc.collect()
    gc.freeze()
    gc.disable()
    _send(answers, {"layers": layers, "missing": missing})
    while (request := _receive(requests)) is not None:
        _send(answers, {"results": _run_all(request, base_bytes)})
    os._exit(0)


def _importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:  # not in this version of Python, or not built
        return False
    return True


def _become_first_process(requests: int, answers: int) -> None:
    """Go on as a child, the first process of the new namespace; its end kills all in it."""
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        return
    os.close(requests)
    os.close(answers)
    os.waitpid(pid, 0)
    os._exit(0)


def _receive(descriptor: int) -> Request | None:
    header = _read_exactly(descriptor, 4)
    if header is None:
        return None
    body = _read_exactly(descriptor, int.from_bytes(header, "big"))
    if body is None:
        return None
    request: Request = json.loads(body)
    return request


def _read_exactly(descriptor: int, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = os.read(descriptor, size - len(data))
        if not part:
            return None
        data += part
    return bytes(data)


def _send(descriptor: int, message: object) -> None:
    body = json.dumps(message).encode()
    data = memoryview(len(body).to_bytes(4, "big") + body)
    while data:
        data = data[os.write(descriptor, data) :]


def _run_all(request: Request, base_bytes: int) -> list[list[str | float]]:
    """Run every source, a few at a time; ``[end, output, CPU seconds]`` for each, in order."""
    tests = ast.literal_eval(request["tests"])
    sources = request["sources"]
    results: list[list[str | float]] = [[] for _ in sources]
    running: dict[int, _Child] = {}
    poller = select.poll()
    started = 0
    while started < len(sources) or running:
        while started < len(sources) and len(running) < request["parallel"]:
            descriptor, child = _start(request, started, tests, base_bytes)
            running[descriptor] = child
            poller.register(descriptor, select.POLLIN)
            started += 1
        wait_seconds = min(child.deadline for child in running.values()) - time.monotonic()
        for descriptor, _ in poller.poll(max(0.0, wait_seconds * 1000.0)):
            child = running[descriptor]
            part = os.read(descriptor, 1 << 16)
            child.output += part
            if not part or len(child.output) > MAX_OUTPUT_BYTES:
                results[child.index] = _finish(descriptor, child, poller, running)
        for descriptor, child in list(running.items()):
            if time.monotonic() > child.deadline:
                child.late = True
                results[child.index] = _finish(descriptor, child, poller, running)
    return results


def _start(
    request: Request, index: int, tests: list[_Arguments], base_bytes: int
) -> tuple[int, _Child]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become_candidate(request, writer, base_bytes)
            _run_candidate(request, index, tests, writer)
        finally:
            os._exit(0)
    os.close(writer)
    return reader, _Child(index, pid, time.monotonic() + request["wall_seconds"])


def _finish(
    descriptor: int, child: _Child, poller: select.poll, running: dict[int, _Child]
) -> list[str | float]:
    """Kill the child's whole group, reap it, say how it ended."""
    poller.unregister(descriptor)
    os.close(descriptor)
    del running[descriptor]
    for kill in (os.killpg, os.kill):  # there is no group before the child has begun its session
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(child.pid, signal.SIGKILL)
    _, status, usage = os.wait4(child.pid, 0)
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if child.late or ended_by in (signal.SIGPROF, signal.SIGXCPU):
        end = "timeout"
    else:
        end = "killed" if ended_by else "exit"
    return [end, child.output.decode(errors="replace"), usage.ru_utime + usage.ru_stime]


def _become_candidate(request: Request, writer: int, base_bytes: int) -> None:
    os.setsid()
    die_with_parent()
    os.closerange(3, writer)
    os.closerange(writer + 1, 256)
    enter_landlock()  # a domain of its own: it cannot signal or trace its neighbours
    limit_resources(
        memory_bytes=base_bytes + request["memory_bytes"], cpu_seconds=request["cpu_seconds"]
    )


def _run_candidate(request: Request, index: int, tests: list[_Arguments], writer: int) -> None:
    """Write one line ``[test, kind, result, arguments after, lines run]`` per test."""
    module = request["module"]
    namespace: dict[str, Any] = dict(vars(sys.modules[module])) if module else {"__name__": ""}
    code = compile(request["sources"][index], CANDIDATE_FILE, "exec", dont_inherit=True)
    exec(code, namespace)  # noqa: S102 - the candidate, in its jail
    function = namespace[request["function"]]
    lines: set[int] = set()

    def trace(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - settrace's own
        if frame.f_code.co_filename != CANDIDATE_FILE:
            return None
        if event == "line":
            lines.add(frame.f_lineno)
        return trace

    for number, (arguments, keywords) in enumerate(tests):
        if request["coverage"]:
            lines.clear()
            sys.settrace(trace)
        try:
            value = function(*arguments, **keywords)
            kind, result = "value", canonical(value)
        except UncomparableError as error:
            kind, result = "strange", str(error)
        except BaseException as error:  # whatever the candidate raises is its result
            kind, result = "raise", type(error).__name__
        finally:
            sys.settrace(None)
        line = [number, kind, result, _render(arguments), sorted(lines)]
        os.write(writer, json.dumps(line).encode() + b"\n")


def _render(arguments: tuple[object, ...]) -> str:
    try:
        return canonical(arguments)
    except UncomparableError:  # the candidate put something strange into an argument
        return "?"
