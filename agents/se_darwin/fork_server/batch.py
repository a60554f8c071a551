"""One request to the fork server: its candidates, a few processes at a time."""

from __future__ import annotations

import ast
import contextlib
import gc
import json
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypedDict

from .candidate import own_state, replay_calls, run_calls, serve_calls, write_bytes, write_line
from .confinement import die_with_parent, enter_landlock, limit_cpu, limit_resources
from .given_modules import PACKAGE, compile_module, file_name
from .private_folder import MAX_DESCRIPTORS, MAX_FILE_BYTES, empty_folder, use_folder
from .suite_runner import SuiteRequest, run_against, run_within
from .tracing import TraceRequest, evaluate, record_calls, record_suite
from .wire import Call

MAX_OUTPUT_BYTES = 1 << 20
MOST_TOGETHER = 16  # candidates that one process runs; what one leaves behind lasts no longer
_MAX_DESCRIPTORS = 1024  # the usual limit of a process
_END = b"#end "  # begins the line after a candidate's results, with its CPU seconds


class Request(TypedDict):
    """One batch of candidates.

    *module*, if any, provides its namespace; *tests* is a literal of pairs of arguments. If
    *suite_module* is set, the program is the module of that name, and *own_modules* are sources of
    modules that it imports. *task* is ``run`` (its tests, or its test suite), ``collect`` or
    ``record`` (see `run_within`), ``replay`` (the *calls*), or ``trace`` (the *traces*).

    If *together*, one process runs several candidates. If *within*, a test suite runs in the
    process of the candidate; else in a process of its own. After *seconds*, candidates are cut off,
    and no other one begins.
    """

    sources: list[str]
    function: str
    module: str | None
    tests: str
    suite_module: str | None
    own_modules: dict[str, str]
    task: str
    calls: list[Call]
    traces: TraceRequest | None
    coverage: bool
    together: bool
    within: bool
    parallel: int
    memory_bytes: int
    cpu_seconds: float
    wall_seconds: float
    seconds: float


@dataclass(slots=True)
class _Child:
    """A process that runs candidates, one after the other, or the two processes of one.

    *indices* are of candidates that have not ended; the first one runs. *deadline* is its own.
    *folder* is its private folder, if any.
    """

    indices: deque[int]
    pids: list[int]
    deadline: float
    folder: str
    output: bytearray = field(default_factory=bytearray)
    cpu_seconds: float = 0.0
    timed_out: bool = False


class Batch:
    """Runs the candidates of one request.

    Args:
        request: The request.
        suite_fd: Descriptor of the file with the test suite.
        parent_fd: Descriptor of the parent's requests: if it hangs up, this process ends.
        base_bytes: Address space of the bare interpreter.
        folders: Private folders, at least as many as candidates run at the same time; or none.
    """

    def __init__(
        self,
        request: Request,
        suite_fd: int,
        parent_fd: int,
        base_bytes: int,
        folders: Sequence[str] = (),
    ) -> None:
        self._request, self._suite_fd, self._base_bytes = request, suite_fd, base_bytes
        self._tests = ast.literal_eval(request["tests"] or "()")
        self._results: list[list[str | float]] = [["timeout", "", 0.0] for _ in request["sources"]]
        self._ends = time.monotonic() + request["seconds"]
        self._running: dict[int, _Child] = {}
        self._folders, self._folder = list(folders), ""
        self._poller, self._parent_fd = select.poll(), parent_fd
        self._poller.register(parent_fd, 0)

    def run(self) -> list[list[str | float]]:
        """Run every source; return ``[end, output, CPU seconds]`` of each."""
        for name, text in self._request["own_modules"].items():  # once, for all children
            compile_module(text, file_name(name.removesuffix(PACKAGE)))
        waiting = deque(self._shares())
        while waiting or self._running:
            while waiting and len(self._running) < self._request["parallel"]:
                self._start(waiting.popleft())
            for descriptor in self._wait():
                left = self._finish(descriptor)
                if left:
                    waiting.append(left)
            if time.monotonic() >= self._ends:
                waiting.clear()
        return self._results

    def _shares(self) -> Iterator[Sequence[int]]:
        """Yield the indices of the candidates that one process runs."""
        count, size = len(self._request["sources"]), 1
        if self._request["together"]:
            size = min(MOST_TOGETHER, -(-count // self._request["parallel"]))
        for first in range(0, count, size):
            yield range(first, min(count, first + size))

    def _start(self, indices: Sequence[int]) -> None:
        request = self._request
        sources = [request["sources"][index] for index in indices]
        reader, writer = os.pipe()
        self._folder = self._folders.pop() if self._folders else ""
        if request["task"] == "replay":
            pids = [self._fork([writer], lambda: self._replay(sources[0], writer))]
        elif request["traces"] is not None:
            traces = request["traces"]
            keep = [writer, self._suite_fd]
            pids = [self._fork(keep, lambda: self._trace(sources[0], traces, writer))]
        elif request["suite_module"] is None:
            pids = [self._fork([writer], lambda: self._call(sources, writer), len(sources))]
        elif request["within"]:
            keep = [writer, self._suite_fd]
            pids = [self._fork(keep, lambda: self._run_within(sources, writer), len(sources))]
        else:
            pids = self._run_against(sources[0], request["suite_module"], writer)
        os.close(writer)
        self._running[reader] = _Child(deque(indices), pids, self._deadline(), self._folder)
        self._poller.register(reader, select.POLLIN)

    def _replay(self, source: str, writer: int) -> None:
        request = self._request
        place = request["module"], request["suite_module"] or "program"
        own_modules, calls = request["own_modules"], request["calls"]
        replay_calls(source, request["function"], place, own_modules, calls, writer)

    def _trace(self, source: str, traces: TraceRequest, writer: int) -> None:
        request = self._request
        limit_cpu(request["cpu_seconds"] - traces["seconds"])
        signal.setitimer(signal.ITIMER_REAL, request["wall_seconds"] - traces["seconds"])
        with own_state():
            if request["suite_module"] is None:
                name, module = request["function"], request["module"]
                visits, numbers = record_calls(source, name, module, self._tests)
            else:
                suite = _read_suite(self._suite_fd)
                os.close(self._suite_fd)
                visits, numbers = record_suite(suite, source)
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            for line in evaluate(traces, visits, numbers):
                write_line(writer, line)

    def _call(self, sources: Sequence[str], writer: int) -> None:
        request = self._request
        name, module, coverage = request["function"], request["module"], request["coverage"]

        def run(source: str) -> None:
            run_calls(source, name, module, self._tests, writer, coverage=coverage)

        self._in_turn(sources, writer, run)

    def _run_within(self, sources: Sequence[str], writer: int) -> None:
        suite, request = _read_suite(self._suite_fd), self._request
        os.close(self._suite_fd)
        name, task, coverage = request["function"], request["task"], request["coverage"]

        def run(source: str) -> None:
            for line in run_within(suite, name, source, task, coverage=coverage):
                write_line(writer, line)

        self._in_turn(sources, writer, run)

    def _run_against(self, source: str, module: str, writer: int) -> list[int]:
        """Start a candidate, and its tests in a second process."""
        request, suite_fd = self._request, self._suite_fd
        calls_in, calls_out = os.pipe()
        answers_in, answers_out = os.pipe()
        function, own_modules, coverage = (
            request["function"],
            request["own_modules"],
            request["coverage"],
        )

        def serve() -> None:
            pipes = (calls_in, answers_out)
            with own_state():
                serve_calls(source, function, module, own_modules, pipes, coverage=coverage)

        def run_tests() -> None:
            suite, pipes = _read_suite(suite_fd), (calls_out, answers_in)
            with own_state():
                for line in run_against(suite, function, pipes, request["task"]):
                    write_line(writer, line)

        pids = [
            self._fork([calls_in, answers_out], serve),
            self._fork([writer, calls_out, answers_in, suite_fd], run_tests),
        ]
        for descriptor in (calls_in, calls_out, answers_in, answers_out):
            os.close(descriptor)
        return pids

    def _in_turn(self, sources: Sequence[str], writer: int, run: Callable[[str], None]) -> None:
        """Run each source with limits of its own; write after its results that it has ended."""
        for number, source in enumerate(sources, 1):
            began = time.process_time()
            limit_cpu(self._request["cpu_seconds"])
            state = own_state(is_last=number == len(sources))
            with state, contextlib.suppress(BaseException):  # what it raises ends it alone
                run(source)
            spent = time.process_time() - began
            if self._folder:
                use_folder(self._folder)  # it may have gone elsewhere
                empty_folder(self._folder)  # an error ends this process: the next begins empty
            gc.collect()  # a program is a cycle; its memory would count as that of the next one
            write_bytes(writer, b"%s%.6f\n" % (_END, spent))

    def _fork(self, keep: list[int], run: Callable[[], None], candidates: int = 1) -> int:
        """Fork a confined process that keeps only the descriptors *keep* and runs only *run*."""
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                die_with_parent()
                for low, high in pairwise([2, *sorted(keep), _MAX_DESCRIPTORS]):
                    os.closerange(low + 1, high)
                # Its own domain: it cannot signal or trace other candidates.
                landlock = enter_landlock([self._folder] if self._folder else [])
                if self._folder and not landlock.startswith("on"):
                    return 0  # it would see the folders of others
                limit_resources(
                    memory_bytes=self._base_bytes + self._request["memory_bytes"],
                    cpu_seconds=candidates * self._request["cpu_seconds"],
                    descriptors=MAX_DESCRIPTORS if self._folder else 0,
                    file_bytes=MAX_FILE_BYTES if self._folder else 0,
                )
                if self._folder:
                    use_folder(self._folder)
                run()
            finally:
                os._exit(0)
        return pid

    def _wait(self) -> list[int]:
        """Read what the children write; return the descriptors of those that have ended or must."""
        seconds = min(child.deadline for child in self._running.values()) - time.monotonic()
        ended = []
        for descriptor, _ in self._poller.poll(max(0.0, seconds * 1000.0)):
            if descriptor == self._parent_fd:  # nobody waits for the results
                os._exit(0)  # the children die with this process
            child = self._running[descriptor]
            part = os.read(descriptor, 1 << 16)
            child.output += part
            self._take_results(child)
            if not part or len(child.output) > MAX_OUTPUT_BYTES:
                ended.append(descriptor)
        for descriptor, child in self._running.items():
            if time.monotonic() > child.deadline and descriptor not in ended:
                child.timed_out = True
                ended.append(descriptor)
        return ended

    def _take_results(self, child: _Child) -> None:
        """Take the results of candidates that have ended from what the process has written."""
        while child.indices:
            mark = 0 if child.output.startswith(_END) else child.output.find(b"\n" + _END) + 1
            end = child.output.find(b"\n", mark)
            if end < 0 or not child.output.startswith(_END, mark):
                return
            text, seconds = child.output[:mark], float(child.output[mark + len(_END) : end])
            index = child.indices.popleft()
            self._results[index] = ["exit", text.decode(errors="replace"), seconds]
            del child.output[: end + 1]
            child.cpu_seconds += seconds
            child.deadline = self._deadline()

    def _deadline(self) -> float:
        """When a candidate that begins now is cut off."""
        return min(self._ends, time.monotonic() + self._request["wall_seconds"])

    def _finish(self, descriptor: int) -> Sequence[int]:
        """Kill a child's processes with their groups; return the candidates that have not begun."""
        self._poller.unregister(descriptor)
        os.close(descriptor)
        child = self._running.pop(descriptor)
        signals: set[int] = set()
        cpu_seconds = -child.cpu_seconds
        for pid in child.pids:
            for kill in (os.killpg, os.kill):  # before `setsid` there is no group of its own
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(pid, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)
            signals.add(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
            cpu_seconds += usage.ru_utime + usage.ru_stime
        if child.folder:
            empty_folder(child.folder)  # an error ends this server: the next one has new folders
            self._folders.append(child.folder)
        if not child.indices:
            return ()
        if len(child.pids) > 1:
            signals.discard(signal.SIGKILL)  # sent above, to a candidate that waits for a call
        if child.timed_out or signals & {signal.SIGPROF, signal.SIGXCPU}:
            end = "timeout"
        else:
            end = "killed" if signals - {0} else "exit"
        text = child.output.decode(errors="replace")
        self._results[child.indices.popleft()] = [end, text, cpu_seconds]
        return child.indices


def _read_suite(descriptor: int) -> SuiteRequest:
    """Read the whole file without moving the file offset, which all suite runners share."""
    data, size = bytearray(), os.fstat(descriptor).st_size
    while len(data) < size:
        data += os.pread(descriptor, size - len(data), len(data))
    suite: SuiteRequest = json.loads(data)
    return suite
