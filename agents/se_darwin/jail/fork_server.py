"""A clean interpreter that forks one confined child per candidate.

Frames on standard input and output: four bytes of length, then JSON. The candidates' expected
results never come here: children send what they computed, and the parent compares. An exam lies
in a file without a name, which only examiners read, each for itself: what this process has once
held, every candidate could find in its memory.
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
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TypedDict

from .call_filter import filter_calls
from .candidate import run_calls, serve_calls, write_line
from .confinement import (
    die_with_parent,
    drop_user,
    enter_landlock,
    enter_namespaces,
    forbid_tracing,
    limit_resources,
)
from .examiner import ExamRequest, examination

MAX_OUTPUT_BYTES = 1 << 20
_MAX_DESCRIPTORS = 1024  # the usual limit of a process


class Request(TypedDict):
    """One batch. *module*, if any, lends its namespace; *tests* is a literal of argument pairs.

    Where there is an *examined* name, the program is that module and the exam is run instead, or
    with *collect* only read.
    """

    sources: list[str]
    function: str
    module: str | None
    tests: str
    examined: str | None
    collect: bool
    coverage: bool
    parallel: int
    memory_bytes: int
    cpu_seconds: float
    wall_seconds: float


@dataclass(slots=True)
class _Child:
    """A candidate under way."""

    index: int
    pids: list[int]
    deadline: float
    output: bytearray = field(default_factory=bytearray)
    late: bool = False


def main() -> None:
    """Import, confine, report the layers, then serve until standard input ends."""
    modules = json.loads(sys.argv[2])
    sys.path += sys.argv[4:]
    missing = [name for name in modules if not _importable(name)]
    sys.path.clear()  # nothing can be opened from here on: what is not there is not found
    base_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    requests, answers, exam = os.dup(0), os.dup(1), os.dup(int(sys.argv[3]))
    os.close(int(sys.argv[3]))
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
    layers["calls"] = filter_calls()  # once, for every child: it costs none of them anything
    gc.collect()
    gc.freeze()
    gc.disable()
    _send(answers, {"layers": layers, "missing": missing})
    while (request := _receive(requests)) is not None:
        _send(answers, {"results": _run_all(request, exam, base_bytes)})
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


def _run_all(request: Request, exam: int, base_bytes: int) -> list[list[str | float]]:
    """Run every source, a few at a time; ``[end, output, CPU seconds]`` for each, in order."""
    sources = request["sources"]
    results: list[list[str | float]] = [[] for _ in sources]
    running: dict[int, _Child] = {}
    poller = select.poll()
    started = 0
    while started < len(sources) or running:
        while started < len(sources) and len(running) < request["parallel"]:
            descriptor, child = _start(request, started, exam, base_bytes)
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


def _start(request: Request, index: int, exam: int, base_bytes: int) -> tuple[int, _Child]:
    """Start a candidate; where there is an exam, two processes: the candidate and its examiner."""
    source, function = request["sources"][index], request["function"]
    coverage, examined = request["coverage"], request["examined"]
    reader, writer = os.pipe()
    if examined is None:
        tests = ast.literal_eval(request["tests"])

        def run() -> None:
            run_calls(source, function, request["module"], tests, writer, coverage=coverage)

        pids = [_fork(request, base_bytes, [writer], run)]
    else:
        asked, ask = os.pipe()
        answers, answer = os.pipe()

        def serve() -> None:
            serve_calls(source, function, examined, asked, answer, coverage=coverage)

        def examine() -> None:
            asks = _read_exam(exam)
            for line in examination(asks, function, ask, answers, collect=request["collect"]):
                write_line(writer, line)

        pids = [_fork(request, base_bytes, [asked, answer], serve)]
        pids += [_fork(request, base_bytes, [writer, ask, answers, exam], examine)]
        for descriptor in (asked, ask, answers, answer):
            os.close(descriptor)
    os.close(writer)
    return reader, _Child(index, pids, time.monotonic() + request["wall_seconds"])


def _read_exam(descriptor: int) -> ExamRequest:
    """Read it whole; the place in the file, which all examiners share, is left alone."""
    data, size = bytearray(), os.fstat(descriptor).st_size
    while len(data) < size:
        data += os.pread(descriptor, size - len(data), len(data))
    exam: ExamRequest = json.loads(data)
    return exam


def _fork(request: Request, base_bytes: int, keep: list[int], run: Callable[[], None]) -> int:
    """Fork a confined process that has the descriptors *keep* and does nothing but *run*."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            die_with_parent()
            for low, high in pairwise([2, *sorted(keep), _MAX_DESCRIPTORS]):
                os.closerange(low + 1, high)
            enter_landlock()  # a domain of its own: it cannot signal or trace its neighbours
            limit_resources(
                memory_bytes=base_bytes + request["memory_bytes"],
                cpu_seconds=request["cpu_seconds"],
            )
            run()
        finally:
            os._exit(0)
    return pid


def _finish(
    descriptor: int, child: _Child, poller: select.poll, running: dict[int, _Child]
) -> list[str | float]:
    """Kill the child's processes with their groups, reap them, say how they ended."""
    poller.unregister(descriptor)
    os.close(descriptor)
    del running[descriptor]
    signals: set[int] = set()
    cpu_seconds = 0.0
    for pid in child.pids:
        for kill in (os.killpg, os.kill):  # there is no group before it has begun its session
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        signals.add(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
        cpu_seconds += usage.ru_utime + usage.ru_stime
    if len(child.pids) > 1:
        signals.discard(signal.SIGKILL)  # ours: a candidate waits for its examiner's next call
    if child.late or signals & {signal.SIGPROF, signal.SIGXCPU}:
        end = "timeout"
    else:
        end = "killed" if signals - {0} else "exit"
    return [end, child.output.decode(errors="replace"), cpu_seconds]
