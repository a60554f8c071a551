"""The fork server as a child process: start it, send it requests, end it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from agents.se_darwin.sandbox.execution import End

START_SECONDS = 30.0
"""Maximum time in which a server imports its modules and reports."""

_ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1"}
# A process with threads, which some packages start when they are imported, enters no namespace.
_ENVIRONMENT |= {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}
_PACKAGE_FOLDER = Path(__file__).resolve().parents[1]
_BOOT = "import sys; sys.path.append(sys.argv[1]); from fork_server.server import main; main()"
_REMEDY = (
    "Run on Linux with seccomp filters, on x86-64 or 64-bit ARM, either with a kernel of 6.12 or "
    "later and Landlock, or as root, or with user namespaces allowed (sysctl "
    "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0; in a "
    "container, a seccomp profile that permits unshare)"
)


class SandboxUnavailableError(RuntimeError):
    """This host cannot isolate candidates, so none is run.

    Args:
        missing: Ways out that a candidate still has, or what the sandbox lacks.
        layers: State that each layer of the sandbox reported.
        remedy: What to do about it.
    """

    def __init__(
        self, missing: Sequence[str], layers: Mapping[str, str], remedy: str = _REMEDY
    ) -> None:
        reported = ", ".join(f"{name}: {state}" for name, state in layers.items()) or "none"
        super().__init__(
            f"this host cannot isolate candidate programs: {'; '.join(missing)} (layers: "
            f"{reported}). {remedy}"
        )
        self.missing, self.layers = tuple(missing), dict(layers)


class ServerLostError(RuntimeError):
    """The fork server died, hung, or is closed."""


class TimeUpError(RuntimeError):
    """The time for what a caller does with the sandbox is up; see `Sandbox.until`."""


class ServerProcess:
    """A running fork server, in a process group of its own.

    Messages in both directions are four bytes of length, most significant first, and then JSON.

    Args:
        modules: Modules to import before any candidate runs.
        packages: Folders that contain those *modules* that are not in the standard library.
        private_folders: Number of private folders for candidates; 0 for none.
        suite_file: Descriptor of the file with the test suite. The server opens its own one, which
            it can only read.
        working_folder: Folder in which candidates without a private folder run.
        hash_seed: Seed of the hashes of texts, which decide the order of sets.

    Attributes:
        pid: Process id, and the id of the process group.
        layers: State that each layer of the sandbox reported.
        missing_modules: The *modules* that this Python does not have.

    Raises:
        SandboxUnavailableError: The interpreter cannot be started, or ends without a report.
    """

    def __init__(
        self,
        *,
        modules: Sequence[str],
        packages: Sequence[str],
        private_folders: int,
        suite_file: int,
        working_folder: Path,
        hash_seed: int = 0,
    ) -> None:
        bare = [sys.executable, "-s", "-S", "-c", _BOOT, str(_PACKAGE_FOLDER)]
        own_suite_file = os.open(f"/proc/self/fd/{suite_file}", os.O_RDONLY)
        arguments = [json.dumps(modules), str(own_suite_file), str(private_folders), *packages]
        try:
            self._process = subprocess.Popen(
                [*bare, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=working_folder,
                env={**_ENVIRONMENT, "PYTHONHASHSEED": str(hash_seed)},
                start_new_session=True,
                bufsize=0,
                pass_fds=[own_suite_file],
            )
        except OSError as error:
            problem = f"this user cannot start the interpreter {sys.executable} ({error.strerror})"
            remedy = "Install Python where this user may read it, or run as another user"
            raise SandboxUnavailableError([problem], {}, remedy) from None
        finally:
            os.close(own_suite_file)
        self.pid = self._process.pid
        try:
            if self._process.stdin is not None:
                os.set_blocking(self._process.stdin.fileno(), False)
            report = self._receive(time.monotonic() + START_SECONDS)
        except BaseException as error:  # leave no process behind
            self.close()
            if isinstance(error, ServerLostError):
                problem = f"the fork server did not start ({error})"
                raise SandboxUnavailableError([problem], {}) from None
            raise
        self.layers: dict[str, str] = report["layers"]
        self.missing_modules: tuple[str, ...] = tuple(report["missing"])

    def exchange(
        self, request: Mapping[str, object], seconds: float
    ) -> list[tuple[End, str, float]]:
        """Send *request* and wait at most *seconds* for the answer.

        Args:
            request: See `agents.se_darwin.fork_server.batch.Request`.
            seconds: Maximum time in seconds for both.

        Returns:
            For each source of the request: how its process ended, what it wrote, and the CPU time
            in seconds that it took.

        Raises:
            ServerLostError: The server is closed, died, or did not answer in time.
        """
        deadline = time.monotonic() + seconds
        body = json.dumps(request).encode()
        data = memoryview(len(body).to_bytes(4, "big") + body)
        descriptor = self._wait_for("stdin", deadline)
        try:
            while data:
                data = data[os.write(descriptor, data) :]
                self._wait_for("stdin", deadline)
        except OSError as error:
            raise ServerLostError(error.strerror) from None
        results: list[tuple[End, str, float]] = self._receive(deadline)["results"]
        return results

    def close(self) -> None:
        """Kill the server and all candidates; a second call does nothing."""
        if self._process.returncode is not None:  # its id may belong to another process by now
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()  # not read to its end, which would wait for all who hold the other
        self._process.wait()

    def _receive(self, deadline: float) -> dict[str, Any]:
        size = int.from_bytes(self._read_exactly(4, deadline), "big")
        message: dict[str, Any] = json.loads(self._read_exactly(size, deadline))
        return message

    def _read_exactly(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = os.read(self._wait_for("stdout", deadline), size - len(data))
            if not part:
                raise ServerLostError("it ended")
            data += part
        return bytes(data)

    def _wait_for(self, name: Literal["stdin", "stdout"], deadline: float) -> int:
        """Wait until a pipe to the server can be written or read; return its descriptor."""
        pipe = self._process.stdin if name == "stdin" else self._process.stdout
        if pipe is None or pipe.closed:
            raise ServerLostError("it is closed")
        poller = select.poll()
        poller.register(pipe, select.POLLOUT if name == "stdin" else select.POLLIN)
        if not poller.poll(max(0.0, (deadline - time.monotonic()) * 1000.0)):
            raise ServerLostError("it did not answer in time")
        return pipe.fileno()
