"""The real daemon in a process of its own, with the storm's agents, seen from outside."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path

import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.many_agents import storm_agents

READY_SECONDS = 3600.0
_POLL_SECONDS = 0.2
_MODULE = "storm_agents"
_LAST_TICK = "genesis_loop_last_tick_timestamp_seconds"
_UP = "genesis_plugin_up"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scrape:
    """One answer of the metrics endpoint.

    Attributes:
        bytes: Size of the answer.
        seconds: Wall time until it was read.
        tick_age_seconds: Time since the loop's last round began, when the answer was made.
        ready: Agents that are up.
    """

    bytes: int
    seconds: float
    tick_age_seconds: float
    ready: int


@dataclass(kw_only=True, slots=True)
class StormDaemon:
    """``genesis-fp16 serve`` in *folder*.

    Attributes:
        folder: Empty folder for agents, settings, home and log.
        names: Agents to install.
        settings: Variables of the settings file.
        process: The daemon's process, while it serves.
    """

    folder: Path
    names: Sequence[str]
    settings: dict[str, object]
    process: psutil.Process = field(init=False)
    _port: int = field(init=False, default=0)
    _starts: int = field(init=False, default=0)

    @property
    def home(self) -> Path:
        """The daemon's home."""
        return self.folder / "home"

    def install(self) -> None:
        """Write the agents, with an installer's metadata."""
        site = self.folder / "site"
        about = site / "storm_agents-1.0.dist-info"
        about.mkdir(parents=True)
        shutil.copy(str(storm_agents.__file__), site / f"{_MODULE}.py")
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: storm-agents\nVersion: 1.0\n")
        lines = (f"{name} = {_MODULE}:agents.{name.replace('-', '_')}\n" for name in self.names)
        (about / "entry_points.txt").write_text("".join(["[genesis.agents]\n", *lines]))

    def configure(self, **changes: object) -> float:
        """Change settings by replacing the file, as an editor does; return the Unix time."""
        self.settings |= changes
        written = self.folder / ".env.new"
        written.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        written.rename(self.folder / ".env")
        return time.time()

    @contextmanager
    def serving(self, *, forked: bool) -> Iterator[None]:
        """Serve until the block ends.

        Args:
            forked: Whether the daemon and its workers are forked from this process, which imports
                torch for that, instead of started.
        """
        self._starts += 1
        log = self.folder / f"daemon-{self._starts}.log"
        environment = {
            "PATH": os.defpath,
            "PYTHONPATH": str(self.folder / "site"),
            "OMP_NUM_THREADS": "1",
        }
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.configure(GENESIS_METRICS_PORT=self._port)
        self.process = psutil.Process((_fork if forked else _start)(self.folder, environment, log))
        try:
            self.wait_for(self._listens, "to listen")
            yield
        finally:
            self.process.terminate()
            try:
                self.process.wait(60)
            except psutil.TimeoutExpired:
                self.process.kill()

    def _listens(self) -> bool:
        try:
            self.scrape()
        except OSError:
            return False
        return True

    def wait_for_agents(self, count: int) -> None:
        """Wait until so many agents are up, and the control API answers.

        Raises:
            RuntimeError: The daemon has ended, or it took too long.
        """
        self.wait_for(lambda: self.scrape().ready >= count, "to know all agents")
        self.wait_for((self.home / "control.sock").exists, "to open its socket")
        self.ask("/api/health")

    def wait_for(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until *holds* does.

        Raises:
            RuntimeError: The daemon has ended, or it took too long.
        """
        deadline = time.monotonic() + READY_SECONDS
        while not holds():
            alive = self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE
            if not alive or time.monotonic() > deadline:
                log = (self.folder / f"daemon-{self._starts}.log").read_text()
                raise RuntimeError(
                    f"the daemon was expected {what}; end of its log:\n{log[-3000:]}"
                )
            time.sleep(_POLL_SECONDS)

    def ask(self, path: str) -> float:
        """Ask the control API for *path* on its Unix socket; return the seconds.

        Raises:
            RuntimeError: The answer is an error.
        """
        begun = time.perf_counter()
        with closing(_UnixConnection(self.home / "control.sock")) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read()
        if answer.status != http.client.OK:
            raise RuntimeError(f"{path} was answered with {answer.status}: {text.decode()[:500]}")
        return time.perf_counter() - begun

    def api_bytes(self) -> int:
        """Resident memory of the process that serves the control API."""
        (process,) = (
            each for each in self.process.children() if "genesis_fp16.api" in each.cmdline()
        )
        return int(process.memory_info().rss)

    def scrape(self) -> Scrape:
        """Read ``/metrics``."""
        begun = time.perf_counter()
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=60)) as connection:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        seconds, now = time.perf_counter() - begun, time.time()
        few = "\n".join(line for line in text.splitlines() if line.startswith((_LAST_TICK, _UP)))
        samples = [s for each in text_string_to_metric_families(few + "\n") for s in each.samples]
        ticks = [each.value for each in samples if each.name == _LAST_TICK]
        return Scrape(
            bytes=len(text),
            seconds=seconds,
            tick_age_seconds=max(0.0, now - ticks[0]) if ticks else float("nan"),
            ready=sum(each.value == 1.0 for each in samples if each.name == _UP),
        )


class _UnixConnection(HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _start(folder: Path, environment: dict[str, str], log: Path) -> int:
    program = Path(sys.executable).with_name("genesis-fp16")
    with log.open("wb") as output:
        return subprocess.Popen(
            [program, "serve"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ).pid


def _fork(folder: Path, environment: dict[str, str], log: Path) -> int:
    from tests.preloaded import fork_daemon, preload  # imports torch, and what workers need

    preload()
    log.touch()
    return fork_daemon(["serve"], folder, environment, log)
