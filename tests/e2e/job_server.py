"""Launchers of jobs, forked from a process that has imported torch: that import is slow.

An engine starts a small program in place of Python. It passes its arguments and its output on to
the server here, which forks the launcher, and lives as long as that: signals reach the launcher,
its exit code becomes the program's, and when the program is killed everything of the job is, as
with a container or a control group.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import psutil

from tests.preloaded import (
    LAUNCHER,
    ForkedPopen,
    _become,
    _die_with,
    _exit_with,
    _fork_children,
    adopt_orphans,
)

ROOT = Path(__file__).resolve().parents[2]
_CODE = "import sys; from tests.e2e.job_server import serve; serve(int(sys.argv[1]))"
_POLL_SECONDS = 0.01
_PROGRAM = """\
#!{python} -IS
import array, json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({address!r})
environment = dict(os.environ) | {environment!r}
request = {{"arguments": sys.argv[1:], "environment": environment, "folder": {folder!r}}}
descriptors = array.array("i", [1, 2])
ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
server.sendmsg([json.dumps(request).encode()], ancillary)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, frame: server.send(b"%d" % number))
code = int(server.recv(16) or b"-9")
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if code != -9 else None
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class JobServer:
    """Forks launchers; it ends with this process.

    It is forked from this process if that has imported what jobs need (*from_here*), else from the
    one that the tests' other processes are forked from.

    Attributes:
        pid: Of the server; its descendants are the processes of jobs.
    """

    def __init__(self, folder: Path, *, from_here: bool = True) -> None:
        self._address = str(folder / "jobs.sock")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(self._address)
        listener.listen(64)
        self._process: subprocess.Popen[bytes] | None = None
        if from_here:
            self.pid = _fork_server(listener)
        else:
            self._process = ForkedPopen(
                [sys.executable, "-P", "-c", _CODE, str(listener.fileno())],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
            self.pid = self._process.pid
        listener.close()

    def write_program(self, path: Path, environment: Mapping[str, str], folder: Path) -> None:
        """Write the program that starts launchers with this environment and working folder."""
        text = _PROGRAM.format(
            python=sys.executable,
            address=self._address,
            environment=dict(environment),
            folder=str(folder),
        )
        path.write_text(text)
        path.chmod(0o755)

    def processes(self) -> list[psutil.Process]:
        """All processes of jobs."""
        return psutil.Process(self.pid).children(recursive=True)

    def close(self) -> None:
        """Kill the server and all jobs."""
        for process in [*self.processes(), psutil.Process(self.pid)]:
            with suppress(psutil.Error):
                process.kill()
        if self._process is not None:
            self._process.wait(60)


@contextmanager
def forked_python(folder: Path) -> Iterator[Path]:
    """Within the block, a program that forks launchers, and what they start, in place of Python.

    It is for ``GENESIS_REMOTE_PYTHON``; it is written into *folder*.
    """
    with closing(JobServer(folder, from_here=False)) as server:
        path = folder / "python"
        server.write_program(path, {}, folder)
        yield path


def serve(descriptor: int) -> NoReturn:
    """Be the server, with the listening socket *descriptor*."""
    _die_with(os.getppid())
    _serve(socket.socket(fileno=descriptor))


def _fork_server(listener: socket.socket) -> int:
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        _die_with(parent)
        os.setsid()
        _serve(listener)
    return pid


def _serve(listener: socket.socket) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for jobs
    parent = os.getpid()
    while True:
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
            continue
        try:
            _die_with(parent)
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _host(connection)
        finally:
            os._exit(70)


def _host(program: socket.socket) -> None:
    """One job, to its end."""
    adopt_orphans()
    message, descriptors, _, _ = socket.recv_fds(program, 1 << 20, 2)
    if not message:
        return
    request = json.loads(message)
    launcher = os.fork()
    if not launcher:
        try:
            _launch(request, descriptors)
        finally:
            os._exit(70)
    for descriptor in descriptors:
        os.close(descriptor)
    code = _follow(program, launcher)
    _kill_all()
    if code is not None:
        with suppress(OSError):
            program.send(str(code).encode())
    os._exit(0)


def _launch(request: dict[str, object], descriptors: list[int]) -> NoReturn:
    os.setsid()
    arguments, environment = request["arguments"], request["environment"]
    assert isinstance(arguments, list)
    assert isinstance(environment, dict)
    assert arguments[:2] == ["-P", "-m"]
    output, errors = descriptors
    null = os.open(os.devnull, os.O_RDONLY)
    given = {0: null, 1: output, 2: errors}
    _become(arguments[2:], environment, Path(str(request["folder"])), given)
    for_bucket = (LAUNCHER,)  # what mirrors its folder starts it
    ForkedPopen.modules += for_bucket
    ForkedPopen.parents += for_bucket
    _fork_children()
    _exit_with(lambda: runpy.run_module(arguments[2], run_name="__main__", alter_sys=True))


def _follow(program: socket.socket, launcher: int) -> int | None:
    """Until the launcher has ended: its exit code; None if its program was killed."""
    while True:
        ended, status = os.waitpid(launcher, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if select.select([program], [], [], _POLL_SECONDS)[0]:
            message = program.recv(16)
            if not message:
                return None
            with suppress(ProcessLookupError):
                os.kill(launcher, int(message))


def _kill_all() -> None:
    """Kill and collect all descendants."""
    while left := psutil.Process().children(recursive=True):
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_POLL_SECONDS)
