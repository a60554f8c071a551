"""Fork server: a clean interpreter that forks one confined child per candidate.

Frames on standard input and output: four bytes of length, then JSON. Expected results never reach
this process: children send what they computed, and the parent compares. A test suite lies in an
unnamed file that only suite runners read, each for itself, because a candidate could find in its
memory everything that this process ever held.
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

from .candidate import replay_calls, run_calls, serve_calls, write_line
from .confinement import (
    die_with_parent,
    drop_user,
    enter_landlock,
    enter_namespaces,
    forbid_tracing,
    limit_resources,
)
from .given_modules import PACKAGE, compile_module
from .seccomp_filter import install_seccomp_filter
from .suite_runner import SuiteRequest, run_suite
from .wire import Call

MAX_OUTPUT_BYTES = 1 << 20
_MAX_DESCRIPTORS = 1024  # the usual limit of a process


class Request(TypedDict):
    """One batch of candidates.

    *module*, if any, provides its namespace; *tests* is a literal of pairs of arguments. If
    *suite_module* is set, the program is the module of that name, and *own_modules* are sources of
    modules that it imports. *task* is ``run`` (its tests, or its test suite), ``collect`` or
    ``record`` (see `run_suite`), or ``replay`` (the *calls*).
    """

    sources: list[str]
    function: str
    module: str | None
    tests: str
    suite_module: str | None
    own_modules: dict[str, str]
    task: str
    calls: list[Call]
    coverage: bool
    parallel: int
    memory_bytes: int
    cpu_seconds: float
    wall_seconds: float


@dataclass(slots=True)
class _Child:
    """A running candidate."""

    index: int
    pids: list[int]
    deadline: float
    output: bytearray = field(default_factory=bytearray)
    timed_out: bool = False


def main() -> None:
    """Import modules, confine this process, report the layers, then serve until stdin closes."""
    modules = json.loads(sys.argv[2])
    sys.path += sys.argv[4:]
    missing = [name for name in modules if not _importable(name)]
    sys.path.clear()  # no file can be opened from here on, so other imports fail as not found
    base_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    requests, answers, suite_fd = os.dup(0), os.dup(1), os.dup(int(sys.argv[3]))
    os.close(int(sys.argv[3]))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    layers = {"namespaces": enter_namespaces()}
    _become_init(requests, answers)
    layers["user"] = drop_user()
    die_with_parent()  # again: the kernel clears it when the user changes
    layers["landlock"] = enter_landlock()
    forbid_tracing()
    layers["seccomp"] = install_seccomp_filter()  # once: children inherit it at no cost
    gc.collect()
    gc.freeze()
    gc.disable()
    _send(answers, {"layers": layers, "missing": missing})
    while (request := _receive(requests)) is not None:
        _send(answers, {"results": _run_all(request, suite_fd, base_bytes)})
    os._exit(0)


def _importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except (Exception, SystemExit):  # not in this version of Python, or it fails without a terminal
        return False
    return True


def _become_init(requests: int, answers: int) -> None:
    """Continue as the first process of the new PID namespace; its end kills every other one."""
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


def _run_all(request: Request, suite_fd: int, base_bytes: int) -> list[list[str | float]]:
    """Run every source, a few at a time; return ``[end, output, CPU seconds]`` of each."""
    sources = request["sources"]
    results: list[list[str | float]] = [[] for _ in sources]
    running: dict[int, _Child] = {}
    poller = select.poll()
    started = 0
    while started < len(sources) or running:
        while started < len(sources) and len(running) < request["parallel"]:
            descriptor, child = _start(request, started, suite_fd, base_bytes)
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
                child.timed_out = True
                results[child.index] = _finish(descriptor, child, poller, running)
    return results


def _start(request: Request, index: int, suite_fd: int, base_bytes: int) -> tuple[int, _Child]:
    """Start a candidate; with a test suite, start its suite runner as a second process."""
    source, function = request["sources"][index], request["function"]
    coverage, suite_module = request["coverage"], request["suite_module"]
    reader, writer = os.pipe()
    own_modules = request["own_modules"]
    for name, text in own_modules.items():  # once, for all children
        compile_module(text, f"<{name.removesuffix(PACKAGE)}>")
    if request["task"] == "replay":

        def replay() -> None:
            place = request["module"], suite_module or "program"
            replay_calls(source, function, place, own_modules, request["calls"], writer)

        pids = [_fork(request, base_bytes, [writer], replay)]
    elif suite_module is None:
        tests = ast.literal_eval(request["tests"])

        def run() -> None:
            run_calls(source, function, request["module"], tests, writer, coverage=coverage)

        pids = [_fork(request, base_bytes, [writer], run)]
    else:
        calls_in, calls_out = os.pipe()
        answers_in, answers_out = os.pipe()

        def serve() -> None:
            pipes = (calls_in, answers_out)
            serve_calls(source, function, suite_module, own_modules, pipes, coverage=coverage)

        def run_tests() -> None:
            suite, task = _read_suite(suite_fd), request["task"]
            for line in run_suite(suite, function, calls_out, answers_in, task=task):
                write_line(writer, line)

        pids = [_fork(request, base_bytes, [calls_in, answers_out], serve)]
        pids += [_fork(request, base_bytes, [writer, calls_out, answers_in, suite_fd], run_tests)]
        for descriptor in (calls_in, calls_out, answers_in, answers_out):
            os.close(descriptor)
    os.close(writer)
    return reader, _Child(index, pids, time.monotonic() + request["wall_seconds"])


def _read_suite(descriptor: int) -> SuiteRequest:
    """Read the whole file without moving the file offset, which all suite runners share."""
    data, size = bytearray(), os.fstat(descriptor).st_size
    while len(data) < size:
        data += os.pread(descriptor, size - len(data), len(data))
    suite: SuiteRequest = json.loads(data)
    return suite


def _fork(request: Request, base_bytes: int, keep: list[int], run: Callable[[], None]) -> int:
    """Fork a confined process that keeps only the descriptors *keep* and runs only *run*."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            die_with_parent()
            for low, high in pairwise([2, *sorted(keep), _MAX_DESCRIPTORS]):
                os.closerange(low + 1, high)
            enter_landlock()  # its own domain: it cannot signal or trace other candidates
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
    """Kill the child's processes with their groups, reap them, and return how they ended."""
    poller.unregister(descriptor)
    os.close(descriptor)
    del running[descriptor]
    signals: set[int] = set()
    cpu_seconds = 0.0
    for pid in child.pids:
        for kill in (os.killpg, os.kill):  # before `setsid` there is no group of its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        signals.add(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
        cpu_seconds += usage.ru_utime + usage.ru_stime
    if len(child.pids) > 1:
        signals.discard(signal.SIGKILL)  # sent above, to a candidate that waits for a call
    if child.timed_out or signals & {signal.SIGPROF, signal.SIGXCPU}:
        end = "timeout"
    else:
        end = "killed" if signals - {0} else "exit"
    return [end, child.output.decode(errors="replace"), cpu_seconds]
