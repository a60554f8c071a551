"""A PostgreSQL server of our own on this machine, and a relay in front of it that can be cut."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.takeover.waiting import wait_for


class ProgramMissingError(RuntimeError):
    """PostgreSQL's programs are not in the path."""


@contextmanager
def postgres_server() -> Iterator[int]:
    """Serve a new, empty cluster on the port of 127.0.0.1 that is yielded.

    Raises:
        ProgramMissingError: ``initdb`` or ``postgres`` is not in the path.
    """
    if shutil.which("initdb") is None or shutil.which("postgres") is None:
        raise ProgramMissingError("PostgreSQL is not installed: apt-get install postgresql")
    user = "nobody" if os.getuid() == 0 else getpass.getuser()  # it refuses to run as root
    folder, port = Path(tempfile.mkdtemp(prefix="genesis-pg-")), free_port()
    shutil.chown(folder, user)
    initdb = ["initdb", "-D", f"{folder}/data", "-U", "postgres", "-A", "trust", "--no-sync"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(initdb, check=True, user=user, cwd=folder, **quiet)  # type: ignore[call-overload]
    serve = ["postgres", "-D", f"{folder}/data", "-k", str(folder), "-F", "-p", str(port)]
    serve += ["-c", "listen_addresses=127.0.0.1"]
    server = subprocess.Popen(serve, user=user, cwd=folder, **quiet)  # type: ignore[call-overload]
    try:
        wait_for(lambda: _accepts(port), "PostgreSQL to serve")
        yield port
    finally:
        server.send_signal(signal.SIGQUIT)  # at once: nothing is to be kept
        server.wait()
        shutil.rmtree(folder)


class Relay:
    """A process that passes bytes on between a port of its own and the server's."""

    def __init__(self, server_port: int) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "benchmarks.takeover.relay"]
        self._process = subprocess.Popen([*command, str(self.port), str(server_port)])
        wait_for(lambda: _accepts(self.port), "the relay to listen")

    def cut(self) -> None:
        """End it: the kernel closes both sides of every connection."""
        self._process.kill()
        self._process.wait()

    def stall(self) -> None:
        """Stop it: nothing is passed on, and no side learns of it."""
        self._process.send_signal(signal.SIGSTOP)


def free_port() -> int:
    """A port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    time.sleep(0.1)
    return True
