"""The parent's side of the jail: start it, prove it, feed it, restart it."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from agents.se_darwin.sandbox.escape_probe import PROBE_FUNCTION, PROBE_SOURCE
from agents.se_darwin.sandbox.exam import Exam, ExamError
from agents.se_darwin.sandbox.execution import End, Execution, Limits, TestCase
from agents.se_darwin.sandbox.unavailable import SandboxUnavailableError

START_SECONDS = 30.0
_ALWAYS = (
    "os",
    "socket",
    "threading",
    # These are imported by others when first needed, when no file can be opened any more.
    *("_strptime", "copy", "gettext", "hashlib", "heapq", "shutil", "textwrap"),
    *(f"encodings.{name}" for name in ("ascii", "cp1252", "idna", "latin_1", "punycode", "rot_13")),
    *("encodings.utf_16", "encodings.utf_32"),
)
_PACKAGE_FOLDER = Path(__file__).resolve().parents[1]
_BOOT = "import sys; sys.path.append(sys.argv[1]); from jail.fork_server import main; main()"


class _ServerLostError(RuntimeError):
    """The fork server died, hung, or spoke nonsense."""


class Sandbox:
    """Runs candidates in confined children of a bare interpreter; nothing runs unconfined.

    Args:
        modules: Modules that candidates may use: imported beforehand, since a candidate can
            open no file.
        packages: Folders in which *modules* lie that are not of the standard library.
        limits: For one candidate, unless `run` is told otherwise.
        parallel: Candidates run at a time.

    Attributes:
        folder: Working folder, removed by `close`; candidates see an empty one in it.
        layers: What each layer of the jail reported.
        missing_modules: Of *modules*, those that this Python does not have.
        restarts: How often a candidate has cost us the server.

    Raises:
        SandboxUnavailableError: A probe escaped, or this is not Linux.
    """

    def __init__(
        self,
        *,
        modules: Sequence[str] = (),
        packages: Sequence[Path] = (),
        limits: Limits | None = None,
        parallel: int = 2,
    ) -> None:
        if sys.platform != "linux":
            raise SandboxUnavailableError([f"{sys.platform} has no Linux isolation"], {})
        self.limits = limits or Limits()
        self.restarts = 0
        self._server: subprocess.Popen[bytes] | None = None
        self._modules = sorted({*_ALWAYS, *modules})
        self._packages = tuple(map(str, packages))
        self._parallel = parallel
        self.folder = Path(tempfile.mkdtemp(prefix="se-darwin-"))
        self._empty = self.folder / "empty"
        self._empty.mkdir(mode=0o555)
        self._exam = os.memfd_create("exam")
        try:
            self._server = self._launch()
            self._greet()
            self._prove()
        except BaseException:  # nothing may outlive a failed start; the error goes on
            self.close()
            raise

    def run(
        self,
        sources: Sequence[str],
        tests: Sequence[TestCase] | Exam,
        *,
        function: str,
        module: str | None = None,
        coverage: bool = False,
        limits: Limits | None = None,
    ) -> list[Execution]:
        """Run each source on all *tests*, each in a process of its own.

        Args:
            sources: Programs that define *function*.
            tests: Only their arguments enter the jail; or a test module, which enters it, but
                never a candidate's process.
            function: What to call.
            module: Standard-library module whose names the programs see.
            coverage: Also record the lines run per test; fourfold time is granted.
            limits: For each source.
        """
        granted = limits or self.limits
        if coverage:
            granted = granted.times(4)
        count = len(tests.checks) if isinstance(tests, Exam) else len(tests)
        request = {
            **self._request(sources, function, granted),
            "module": module,
            "coverage": coverage,
        }
        if isinstance(tests, Exam):
            request |= self._lay_out(tests)
        else:
            request["tests"] = repr([(case.arguments, dict(case.keywords)) for case in tests])
        try:
            results = self._exchange(request, granted.wall_seconds * len(sources) + START_SECONDS)
        except _ServerLostError:
            self._restart()
            if len(sources) == 1:  # the culprit costs only itself
                return [Execution(outputs=(None,) * count, end="killed")]
            return [
                self.run(
                    [source],
                    tests,
                    function=function,
                    module=module,
                    coverage=coverage,
                    limits=limits,
                )[0]
                for source in sources
            ]
        return [
            Execution.parse(text, count, end=end, cpu_seconds=cpu_seconds)
            for end, text, cpu_seconds in results
        ]

    def collect(self, exam: Exam, *, function: str, limits: Limits) -> tuple[str, ...]:
        """Names of the checks in *exam*, read in the jail.

        Raises:
            ExamError: It cannot be run there.
        """
        both = f"{exam.names[0]}.py or its tests"
        request = {
            **self._request([exam.program], function, limits),
            **self._lay_out(exam),
            "collect": True,
        }
        try:
            [(end, text, _)] = self._exchange(request, limits.wall_seconds + START_SECONDS)
            kind, found = json.loads(text)
        except _ServerLostError as error:
            self._restart()
            raise ExamError(f"importing {both} ended the jail: {error}") from None
        except ValueError:
            how = f"takes {limits.wall_seconds:g} s or more" if end == "timeout" else "ends Python"
            raise ExamError(f"importing {both} {how}: see what stands at their top level") from None
        if kind == "problem":
            raise ExamError(str(found))
        return tuple(map(str, found))

    @property
    def server_pid(self) -> int:
        """Process group of the fork server; it changes with every restart."""
        if self._server is None:
            raise RuntimeError("this sandbox is closed: open another")
        return self._server.pid

    def close(self) -> None:
        """Kill everything and remove the working folder; a second call does nothing."""
        self._stop()
        if self._exam >= 0:
            os.close(self._exam)
            self._exam = -1
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _launch(self) -> subprocess.Popen[bytes]:
        bare = [sys.executable, "-s", "-S", "-c", _BOOT, str(_PACKAGE_FOLDER)]
        exam = os.open(f"/proc/self/fd/{self._exam}", os.O_RDONLY)
        try:
            server = subprocess.Popen(
                [*bare, json.dumps(self._modules), str(exam), *self._packages],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=self._empty,
                env={"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
                start_new_session=True,
                bufsize=0,
                pass_fds=[exam],
            )
        except OSError as error:
            problem = f"this user cannot start the interpreter {sys.executable} ({error.strerror})"
            remedy = "Install Python where this user may read it, or run as another"
            raise SandboxUnavailableError([problem], {}, remedy) from None
        finally:
            os.close(exam)
        if server.stdin is not None:
            os.set_blocking(server.stdin.fileno(), False)
        return server

    def _greet(self) -> None:
        try:
            greeting = self._receive(time.monotonic() + START_SECONDS)
        except _ServerLostError as error:
            raise SandboxUnavailableError(
                [f"the fork server did not start ({error})"], {}
            ) from None
        self.layers: dict[str, str] = greeting["layers"]
        self.missing_modules: tuple[str, ...] = tuple(greeting["missing"])

    def _prove(self) -> None:
        """Run a candidate that tries to escape; refuse the host if any attempt succeeds."""
        canary = self.folder / "canary"
        canary.touch(mode=0o600)
        case = TestCase.returning((str(canary), os.getpid()), [])
        limits = Limits(cpu_seconds=2.0, wall_seconds=10.0)
        [execution] = self.run([PROBE_SOURCE], [case], function=PROBE_FUNCTION, limits=limits)
        output = execution.outputs[0]
        if not case.passes(output) or not canary.exists():
            if output is None or output.kind != "value":
                escaped = [f"the escape probe was lost ({execution.end})"]
            else:
                escaped = ast.literal_eval(output.text) or ["it can delete files of this user"]
            raise SandboxUnavailableError(escaped, self.layers)

    def _restart(self) -> None:
        self.restarts += 1
        self._stop()
        self._server = self._launch()
        self._greet()

    def _stop(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.communicate()

    def _lay_out(self, exam: Exam) -> dict[str, object]:
        """Put *exam* where examiners find it and candidates do not; the name it is asked for by."""
        os.ftruncate(self._exam, 0)
        with os.fdopen(self._exam, "wb", closefd=False) as file:
            file.seek(0)
            file.write(json.dumps(exam.to_request()).encode())
        return {"examined": exam.names[0]}

    def _request(self, sources: Sequence[str], function: str, limits: Limits) -> dict[str, object]:
        """See `agents.se_darwin.jail.fork_server.Request`."""
        return {
            "sources": list(sources),
            "function": function,
            "module": None,
            "tests": "",
            "examined": None,
            "collect": False,
            "coverage": False,
            "parallel": self._parallel,
            "memory_bytes": limits.memory_bytes,
            "cpu_seconds": limits.cpu_seconds,
            "wall_seconds": limits.wall_seconds,
        }

    def _exchange(
        self, request: Mapping[str, object], seconds: float
    ) -> list[tuple[End, str, float]]:
        deadline = time.monotonic() + seconds
        body = json.dumps(request).encode()
        data = memoryview(len(body).to_bytes(4, "big") + body)
        descriptor = self._pipe("stdin", deadline, select.POLLOUT)
        try:
            while data:
                data = data[os.write(descriptor, data) :]
                self._pipe("stdin", deadline, select.POLLOUT)
        except OSError as error:
            raise _ServerLostError(error.strerror) from None
        results: list[tuple[End, str, float]] = self._receive(deadline)["results"]
        return results

    def _receive(self, deadline: float) -> dict[str, Any]:
        size = int.from_bytes(self._read_exactly(4, deadline), "big")
        message: dict[str, Any] = json.loads(self._read_exactly(size, deadline))
        return message

    def _read_exactly(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = os.read(self._pipe("stdout", deadline, select.POLLIN), size - len(data))
            if not part:
                raise _ServerLostError("it ended")
            data += part
        return bytes(data)

    def _pipe(self, name: Literal["stdin", "stdout"], deadline: float, event: int) -> int:
        """The descriptor of a pipe to the server, once it is ready for *event*."""
        pipe = getattr(self._server, name, None)
        if pipe is None:
            raise _ServerLostError("it is closed")
        poller = select.poll()
        poller.register(pipe, event)
        if not poller.poll(max(0.0, (deadline - time.monotonic()) * 1000.0)):
            raise _ServerLostError("it did not answer in time")
        return int(pipe.fileno())
