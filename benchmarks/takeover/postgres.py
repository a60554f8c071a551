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

from benchmarks.measuring.ports import free_port
from benchmarks.takeover.waiting import wait_for


class ProgramMissingError(RuntimeError):
    """PostgreSQL's programs are not in the path."""


class PostgresServer:
    """A new, empty cluster, served from the start on; `close` it.

    Attributes:
        port: Port of 127.0.0.1.

    Raises:
        ProgramMissingError: ``initdb`` or ``postgres`` is not in the path.
    """

    def __init__(self) -> None:
        if shutil.which("initdb") is None or shutil.which("postgres") is None:
            raise ProgramMissingError("PostgreSQL is not installed: apt-get install postgresql")
        user = "nobody" if os.getuid() == 0 else getpass.getuser()  # it refuses to run as root
        self._folder, self.port = Path(tempfile.mkdtemp(prefix="genesis-pg-")), free_port()
        shutil.chown(self._folder, user)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._options: dict[str, object] = {"user": user, "cwd": self._folder, **quiet}
        data = f"{self._folder}/data"
        initdb = ["initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync"]
        subprocess.run(initdb, check=True, **self._options)  # type: ignore[call-overload]
        self.start()

    def start(self) -> None:
        """Serve, and wait until it does; after a crash it recovers what was committed."""
        serve = ["postgres", "-D", f"{self._folder}/data", "-k", str(self._folder), "-F"]
        serve += ["-p", str(self.port), "-c", "listen_addresses=127.0.0.1"]
        self._server = subprocess.Popen(serve, **self._options)  # type: ignore[call-overload]
        wait_for(self._is_ready, "PostgreSQL to serve")

    def _is_ready(self) -> bool:
        ask = ["pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ask, check=False).returncode == 0

    def end(self, number: int = signal.SIGQUIT) -> None:
        """End it by a signal; the default is at once, with nothing written."""
        self._server.send_signal(number)
        self._server.wait(60)

    def close(self) -> None:
        """End it and remove its files."""
        self.end()
        shutil.rmtree(self._folder, ignore_errors=True)  # what is still ending may write to it


@contextmanager
def postgres_server() -> Iterator[int]:
    """Serve a new, empty cluster on the port of 127.0.0.1 that is yielded.

    Raises:
        ProgramMissingError: ``initdb`` or ``postgres`` is not in the path.
    """
    server = PostgresServer()
    try:
        yield server.port
    finally:
        server.close()


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


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    time.sleep(0.1)
    return True
