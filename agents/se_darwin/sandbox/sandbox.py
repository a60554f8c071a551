"""The sandbox: send programs to the fork server, restart it, prove that it confines."""

from __future__ import annotations

import ast
import contextlib
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from agents.se_darwin.fork_server.tracing import TraceRequest
from agents.se_darwin.fork_server.wire import Call
from agents.se_darwin.sandbox.escape_check import CHECK_FUNCTION, CHECK_SOURCE
from agents.se_darwin.sandbox.execution import End, Execution, Limits, TestCase
from agents.se_darwin.sandbox.found_tests import PytestSuiteError
from agents.se_darwin.sandbox.pytest_suite import PytestSuite
from agents.se_darwin.sandbox.server_process import (
    START_SECONDS,
    SandboxUnavailableError,
    ServerLostError,
    ServerProcess,
    TimeUpError,
)

RECORDING_SECONDS = 5.0
"""Maximum time in seconds, CPU or wall-clock, of the tests in `Sandbox.trace`."""

_ALWAYS = (
    "os",
    "socket",
    "threading",
    # Other modules import these on first use, when no file can be opened any more.
    *("_strptime", "copy", "gettext", "hashlib", "heapq", "shutil", "textwrap"),
    *(f"encodings.{name}" for name in ("ascii", "cp1252", "idna", "latin_1", "punycode", "rot_13")),
    *("encodings.utf_16", "encodings.utf_32"),
)


class Sandbox:
    """Runs candidates in confined children of a bare interpreter; nothing runs unconfined.

    Args:
        modules: Modules that candidates may use. They are imported beforehand, because a candidate
            cannot open files.
        packages: Folders that contain those *modules* that are not in the standard library.
        limits: Default limits of one candidate; `run` may override them.
        parallel: Number of candidates that run at the same time.
        files: Whether each candidate has a private folder, a small file system in memory that
            vanishes with it, if the host can confine it there.
        hash_seed: Seed of the hashes of texts, which decide the order of sets.

    Attributes:
        folder: Working folder, removed by `close`; candidates run in an empty folder inside it.
        restarts: Number of times that the fork server was lost and restarted.

    Raises:
        SandboxUnavailableError: A check escaped, or this is not Linux.
    """

    def __init__(
        self,
        *,
        modules: Sequence[str] = (),
        packages: Sequence[Path] = (),
        limits: Limits | None = None,
        parallel: int = 2,
        files: bool = False,
        hash_seed: int = 0,
    ) -> None:
        if sys.platform != "linux":
            raise SandboxUnavailableError([f"{sys.platform} has no Linux isolation"], {})
        self.limits = limits or Limits()
        self.restarts = 0
        self._modules = sorted({*_ALWAYS, *modules})
        self._packages = tuple(map(str, packages))
        self._parallel, self._private_folders = parallel, parallel if files else 0
        self._hash_seed = hash_seed
        self._others: dict[int, Sandbox] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="se-darwin-"))
        self._empty = self.folder / "empty"
        self._empty.mkdir(mode=0o555)
        self._suite_fd = os.memfd_create("suite")
        self._deadline = math.inf
        self._server: ServerProcess | None = None
        try:
            self._server = self._launch()
            self._probe_escapes()
        except BaseException:  # leave nothing behind after a failed start
            self.close()
            raise

    def run(
        self,
        sources: Sequence[str],
        tests: Sequence[TestCase] | PytestSuite,
        *,
        function: str,
        module: str | None = None,
        coverage: bool = False,
        limits: Limits | None = None,
    ) -> list[Execution]:
        """Run each source on all *tests*, each in a process of its own.

        The checks of a test suite run in another process, unless it is `PytestSuite.within`.

        Args:
            sources: Programs that define *function*.
            tests: Test cases, whose arguments alone enter the sandbox; or a test suite, which
                enters it, but never a candidate's process.
            function: Name of the function to call.
            module: Standard-library module whose names the programs see.
            coverage: Also record the lines that each test runs; quadruples the time limits.
            limits: Limits of each source; None for the sandbox's own.

        Returns:
            One execution per source, in order.
        """
        granted = limits or self.limits
        if coverage:
            granted = granted.times(4)
        request = {
            **self._request(sources, function, granted),
            **self._tests(tests),
            "module": module,
            "coverage": coverage,
        }
        return self._run(request, _count(tests))

    def screen(
        self,
        sources: Sequence[str],
        tests: Sequence[TestCase] | PytestSuite,
        *,
        function: str,
        module: str | None = None,
        limits: Limits | None = None,
    ) -> list[Execution]:
        """Run each source on all *tests*, many times as fast as `run`, which confirms who passes.

        One process runs several sources, one after the other, and a suite's checks, too: a program
        may see what one before it did to an imported module, and could find what tests expect. The
        arguments and the result are those of `run`.
        """
        request = {
            **self._request(sources, function, limits or self.limits),
            **self._tests(tests),
            "module": module,
            "together": True,
            "within": True,
        }
        return self._run(request, _count(tests))

    def replay(
        self,
        sources: Sequence[str],
        calls: Sequence[Call],
        *,
        function: str,
        limits: Limits,
        module: str | None = None,
        suite: PytestSuite | None = None,
    ) -> list[Execution]:
        """Run *calls* with each source, each in a process of its own.

        Args:
            sources: Programs that define *function*.
            calls: Calls as `record` returns them.
            function: Name of the function to call, also ``Class.method``.
            limits: Limits of each source.
            module: Module whose names the programs see.
            suite: Test suite of the programs, whose modules they may import; it is not run.

        Returns:
            One execution per source, with one output per call. Objects of the program's classes
            have a text, too.
        """
        request = {
            **self._request(sources, function, limits),
            "task": "replay",
            "calls": list(calls),
            "module": module,
        }
        if suite is not None:
            request["suite_module"] = suite.program.module
            request["own_modules"] = dict(suite.program.own_modules)
        return self._run(request, len(calls))

    def trace(
        self,
        source: str,
        tests: Sequence[TestCase] | PytestSuite,
        traces: TraceRequest,
        *,
        function: str,
        module: str | None,
        limits: Limits,
    ) -> list[list[object]]:
        """Run instrumented *source* on *tests* in one process, and evaluate *traces* there.

        Returns:
            Lines as `agents.se_darwin.fork_server.tracing.evaluate` yields them: fewer than there
            are traces if one of them ends the process, or the time is over.
        """
        seconds = traces["seconds"]
        granted = replace(
            limits,
            cpu_seconds=min(4 * limits.cpu_seconds, RECORDING_SECONDS) + seconds,
            wall_seconds=min(4 * limits.wall_seconds, RECORDING_SECONDS) + seconds,
        )
        request = {
            **self._request([source], function, granted),
            **self._tests(tests),
            "task": "trace",
            "traces": traces,
            "module": module,
        }
        return [line for line in self._messages(request) if _is_of_trace(line)]

    def record(
        self, source: str, suite: PytestSuite, *, function: str, limits: Limits
    ) -> list[tuple[int, Call]]:
        """Run *suite* with *source*; return the calls of *function*, each with its check's number.

        Calls whose arguments cannot be sent between processes are missing, and those beyond the
        first `agents.se_darwin.fork_server.function_proxy.MAX_CALLS` of a check.
        """
        request = {
            **self._request([source], function, limits),
            **self._write_suite(suite),
            "task": "record",
        }
        lines = self._messages(request)
        calls = [line for line in lines if line[:1] == ["call"] and len(line) == 3]
        return [(int(number), call) for _, number, call in calls]

    def watch(
        self, source: str, suite: PytestSuite, *, function: str, limits: Limits
    ) -> list[tuple[str, str, str, str]]:
        """Run *suite* with *source*; return tests that fail, and may fail with every program.

        Returns:
            ``ends`` if the test itself ends the process or its run, ``raises`` if it failed outside
            of all checks, or ``handled`` if the test or the program handled what the sandbox
            refused; name of the test; why, or where, in words; and the name of the file that was
            refused, empty for anything else.
        """
        request = {
            **self._request([source], function, limits.times(4)),
            **self._write_suite(suite),
            "task": "watch",
            "within": True,
        }
        kinds = ("ends", "raises", "handled")
        lines = [line for line in self._messages(request) if line and line[0] in kinds]
        return [(line[0], *map(str, line[1:])) for line in lines if len(line) == 4]

    def _run(self, request: Mapping[str, Any], count: int) -> list[Execution]:
        """Exchange a *request* to run programs, which have *count* results each."""
        sources = request["sources"]
        try:
            results = self._exchange(request)
        except ServerLostError:
            self._restart()
            if len(sources) == 1:  # this source killed the server
                return [Execution(outputs=(None,) * count, end="killed")]
            alone = {**request, "together": False}
            return [self._run({**alone, "sources": [source]}, count)[0] for source in sources]
        return [
            Execution.parse(text, count, end=end, cpu_seconds=cpu_seconds)
            for end, text, cpu_seconds in results
        ]

    def _exchange(self, request: Mapping[str, Any]) -> list[tuple[End, str, float]]:
        """Send a *request* to the server, and wait for its results; see `until`.

        Raises:
            ServerLostError: The server is closed, died, or did not answer in time.
            TimeUpError: The time is up, so that results may be incomplete.
        """
        left = self._deadline - time.monotonic()
        if left <= 0.0:
            raise TimeUpError
        wall_seconds = min(request["wall_seconds"], left)
        results = self._running_server.exchange(
            {**request, "wall_seconds": wall_seconds, "seconds": left},
            min(left, wall_seconds * len(request["sources"])) + START_SECONDS,
        )
        if time.monotonic() >= self._deadline:
            raise TimeUpError
        return results

    def _messages(self, request: Mapping[str, Any]) -> list[list[Any]]:
        """Exchange a *request* to run one program; return the lists that it wrote, one a line.

        Other lines are cut off, or forged. There is no list if the program ended the server.
        """
        try:
            [(_, text, _)] = self._exchange(request)
        except ServerLostError:
            self._restart()
            return []
        messages: list[list[Any]] = []
        for line in text.splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                message = json.loads(line)
                messages += [message] if isinstance(message, list) else []
        return messages

    def with_hash_seed(self, seed: int) -> Sandbox:
        """Return a sandbox like this one in which sets have another order; `close` closes it.

        Raises:
            SandboxUnavailableError: It cannot be opened.
        """
        if seed not in self._others:
            self._others[seed] = Sandbox(
                modules=self._modules,
                packages=[Path(folder) for folder in self._packages],
                limits=self.limits,
                parallel=1,
                files=bool(self._private_folders),
                hash_seed=seed,
            )
        return self._others[seed]

    @contextlib.contextmanager
    def until(self, deadline: float) -> Iterator[None]:
        """Let no program run longer than to *deadline*, of `time.monotonic`, within the block.

        Raises:
            TimeUpError: The deadline has passed, and another program was to run or was cut off.
        """
        before, self._deadline = self._deadline, deadline
        try:
            yield
        finally:
            self._deadline = before

    def import_modules(self, names: Collection[str]) -> bool:
        """Restart with modules imported that were not before; return whether there are any.

        Args:
            names: Modules of the standard library or of `packages`.
        """
        more = set(names) - set(self._modules)
        if more:
            self._modules = sorted({*self._modules, *more})
            self._start_again()
            self._close_others()
        return bool(more)

    def collect(self, suite: PytestSuite, *, function: str, limits: Limits) -> PytestSuite:
        """Return *suite* with the names of its checks; its modules are imported in the sandbox.

        Raises:
            PytestSuiteError: The suite cannot be run in the sandbox.
        """
        both = f"{suite.program.module}.py or its tests"
        request = {
            **self._request([suite.program.code], function, limits),
            **self._write_suite(suite),
            "task": "collect",
            "within": True,
        }
        try:
            [(end, text, _)] = self._exchange(request)
            answer, *others = text.splitlines() or [""]
            kind, content, *left_out = json.loads(answer)
            missing_modules = tuple(name for line in others for name in json.loads(line)[1])
        except ServerLostError as error:
            self._restart()
            raise PytestSuiteError(f"importing {both} ended the fork server: {error}") from None
        except (ValueError, TypeError, LookupError, RecursionError):
            how = f"takes {limits.wall_seconds:g} s or more" if end == "timeout" else "ends Python"
            message = f"importing {both} {how}: look at the statements at their top level"
            raise PytestSuiteError(message) from None
        if kind == "problem":
            raise PytestSuiteError(str(content), missing_modules)
        all_left_out = tuple(dict.fromkeys((*suite.left_out, *map(str, *left_out))))
        return replace(
            suite,
            checks=tuple(map(str, content)),
            left_out=all_left_out,
            missing_modules=missing_modules,
        )

    @property
    def layers(self) -> Mapping[str, str]:
        """State that each layer of the sandbox reported."""
        return self._running_server.layers

    @property
    def missing_modules(self) -> Sequence[str]:
        """Those of the modules to import that this Python does not have."""
        return self._running_server.missing_modules

    @property
    def server_pid(self) -> int:
        """Process group of the fork server; every restart changes it."""
        return self._running_server.pid

    @property
    def _running_server(self) -> ServerProcess:
        if self._server is None:
            raise RuntimeError("this sandbox is closed; open another one")
        return self._server

    def close(self) -> None:
        """Kill all processes and remove the working folder; a second call does nothing."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        if self._suite_fd >= 0:
            os.close(self._suite_fd)
            self._suite_fd = -1
        shutil.rmtree(self.folder, ignore_errors=True)
        self._close_others()

    def _close_others(self) -> None:
        while self._others:
            self._others.popitem()[1].close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _launch(self) -> ServerProcess:
        return ServerProcess(
            modules=self._modules,
            packages=self._packages,
            private_folders=self._private_folders,
            suite_file=self._suite_fd,
            working_folder=self._empty,
            hash_seed=self._hash_seed,
        )

    def _probe_escapes(self) -> None:
        """Run a candidate that tries to escape; refuse this host if any attempt succeeds."""
        canary = self.folder / "canary"
        canary.touch(mode=0o600)
        has_folder = self.layers["files"] == "on"
        case = TestCase.returning((str(canary), os.getpid(), has_folder), [])
        limits = Limits(cpu_seconds=2.0, wall_seconds=10.0)
        [execution] = self.run([CHECK_SOURCE], [case], function=CHECK_FUNCTION, limits=limits)
        output = execution.outputs[0]
        if not case.passes(output) or not canary.exists():
            if output is None or output.kind != "value":
                escaped = [f"the escape check was lost ({execution.end})"]
            else:
                escaped = ast.literal_eval(output.text) or ["it can delete files of this user"]
            raise SandboxUnavailableError(escaped, self.layers)

    def _restart(self) -> None:
        self.restarts += 1
        self._start_again()

    def _start_again(self) -> None:
        self._running_server.close()
        self._server = self._launch()

    def _tests(self, tests: Sequence[TestCase] | PytestSuite) -> dict[str, object]:
        """Fields of a request that runs *tests*."""
        if isinstance(tests, PytestSuite):
            return self._write_suite(tests) | {"within": tests.within}
        return {"tests": repr([(case.arguments, dict(case.keywords)) for case in tests])}

    def _write_suite(self, suite: PytestSuite) -> dict[str, object]:
        """Write *suite* to the file that suite runners read and candidates cannot."""
        os.ftruncate(self._suite_fd, 0)
        with os.fdopen(self._suite_fd, "wb", closefd=False) as file:
            file.seek(0)
            file.write(json.dumps(suite.to_request()).encode())
        program = suite.program
        return {"suite_module": program.module, "own_modules": dict(program.own_modules)}

    def _request(self, sources: Sequence[str], function: str, limits: Limits) -> dict[str, object]:
        """A request; see `agents.se_darwin.fork_server.batch.Request`."""
        return {
            "sources": list(sources),
            "function": function,
            "module": None,
            "tests": "",
            "suite_module": None,
            "own_modules": {},
            "task": "run",
            "calls": [],
            "traces": None,
            "coverage": False,
            "together": False,
            "within": False,
            "parallel": self._parallel,
            "memory_bytes": limits.memory_bytes,
            "cpu_seconds": limits.cpu_seconds,
            "wall_seconds": limits.wall_seconds,
            "seconds": math.inf,
        }


def _is_of_trace(line: list[Any]) -> bool:
    """Whether *line* has the form of one of `agents.se_darwin.fork_server.tracing.evaluate`."""
    kind, *fields = line or [""]
    sizes = {"checks": 2, "effect": 6, "unknown": 0}
    are_counts = all(isinstance(field, int) and 0 <= field < 1 << 31 for field in fields[:5])
    return isinstance(kind, str) and sizes.get(kind) == len(fields) and are_counts


def _count(tests: Sequence[TestCase] | PytestSuite) -> int:
    return len(tests.checks) if isinstance(tests, PytestSuite) else len(tests)
