"""A real daemon whose processes are killed while agents ask and report, and its memory."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from benchmarks.measuring.ports import free_port
from benchmarks.predictor.served import QUESTION, Connection
from infrastructure.decisions import take_in
from infrastructure.decisions.log import logs_of
from infrastructure.trajectories import ReplayBuffer

AGENT = "a0"
_CLIENTS = 8
_PATIENCE_SECONDS = 300.0
_PROGRAM = Path(sys.executable).with_name("genesis-fp16")
_DEFINITION = """schedule = "every 30d"
[source]
path = "records"
format = "transitions"
[spec.observation.load]
type = "box"
[spec.action.effort]
type = "box"
[spec.targets.reward]
type = "box"
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Killed:
    """What became of acknowledged outcomes.

    Attributes:
        acknowledged: Number of outcomes that were answered.
        lost, doubled: Those that the replay buffer holds not at all, or more than once.
    """

    acknowledged: int
    lost: int
    doubled: int


class Daemon:
    """``genesis-fp16 serve`` in a home of its own.

    Attributes:
        home: Its GENESIS_HOME.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._environ = {
            "PATH": os.defpath,
            "HOME": str(home.parent),
            "GENESIS_HOME": str(home),
            "GENESIS_METRICS_PORT": str(free_port()),
            "GENESIS_AGENTS__SE_DARWIN__ENABLED": "false",
        }
        home.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        """Start it."""
        with (self.home.parent / f"{self.home.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [_PROGRAM, "serve"],
                env=self._environ,
                cwd=self.home.parent,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def cli(self, *arguments: str) -> str:
        """What a command prints."""
        done = subprocess.run(
            [_PROGRAM, *arguments],
            env=self._environ,
            cwd=self.home.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    def child(self, module: str) -> psutil.Process | None:
        """Its process that runs *module*."""
        with suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children():
                with suppress(psutil.Error):
                    if module in child.cmdline():
                        return child
        return None

    def kill(self, module: str | None) -> bool:
        """Kill it, and start it again, or its process that runs *module*; False if none runs."""
        if module is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.start()
            return True
        child = self.child(module)
        if child is None:
            return False
        with suppress(psutil.Error):
            child.kill()
        return True

    def end(self) -> None:
        """Stop it."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def running(home: Path) -> Iterator[Daemon]:
    """A daemon that ends with the block."""
    daemon = Daemon(home)
    try:
        yield daemon
    finally:
        daemon.end()


def kill_and_count(home: Path, kills: int) -> Killed:
    """Kill predictor, API and daemon in turn while clients report; count what arrived."""
    (home / "agents" / AGENT).mkdir(parents=True)
    ended, known = threading.Event(), [set[str]() for _ in range(_CLIENTS)]
    with running(home) as daemon:
        clients = [
            threading.Thread(target=_report_until, args=(home, number, ended, known[number]))
            for number in range(_CLIENTS)
        ]
        for client in clients:
            client.start()
        targets = ("genesis_fp16.predictor", "genesis_fp16.api", None)
        for number in range(kills):
            _ask_api(home)
            before = sum(map(len, known))
            _wait(partial(_has_grown, known, before + 20))
            time.sleep(number % 7 / 70)  # kills meet requests at different places
            target = targets[number % 3]
            _wait(partial(_kill, daemon, target))
        ended.set()
        for client in clients:
            client.join()
    agent = home / "agents" / AGENT
    for origin, log in logs_of(agent).items():
        take_in(log, agent / "replay", now=0.0, source=origin)
    counts = Counter(
        str(row.info["decision"])
        for row in ReplayBuffer(agent / "replay").read()
        if "decision" in row.info
    )
    acknowledged = set[str]().union(*known)
    return Killed(
        acknowledged=len(acknowledged),
        lost=sum(name not in counts for name in acknowledged),
        doubled=sum(count > 1 for count in counts.values()),
    )


def measure_daemon_bytes(home: Path, agents: int) -> int:
    """Resident memory of a daemon with configured *agents*, once API and predictor answer."""
    (home / "agents.d").mkdir(parents=True)
    (home / "records").mkdir()
    for number in range(agents):
        (home / "agents.d" / f"small{number}.toml").write_text(_DEFINITION)
        (home / "agents" / f"small{number}").mkdir(parents=True)
    with running(home) as daemon:
        _wait(lambda: daemon.cli("agents").count(" ready ") >= agents)
        client = Connection(home / "predict.sock")
        for number in range(agents):
            client.ask(f"small{number}", "rank", QUESTION)
        client.close()
        _wait(partial(_has_api, daemon))
        time.sleep(5.0)  # it has read some reports
        return int(psutil.Process(daemon.process.pid).memory_info().rss)


def _report_until(home: Path, number: int, ended: threading.Event, known: set[str]) -> None:
    """Decide and report again and again; each request is repeated until it is answered."""
    count, client = 0, Connection(home / "predict.sock")
    while not ended.is_set():
        count += 1
        name = f"d-{number}-{count}"
        requests = (
            ("decisions", {**QUESTION, "id": name}),
            (f"decisions/{name}/outcome", {"reward": 1.0}),
        )
        for verb, body in requests:
            while True:
                try:
                    client.ask(AGENT, verb, body)
                    break
                except (OSError, http.client.HTTPException, RuntimeError):
                    client.close()
                    client = Connection(home / "predict.sock")
                    time.sleep(0.02)
        known.add(name)
    client.close()


def _has_grown(known: list[set[str]], size: int) -> bool:
    return sum(map(len, known)) >= size


def _kill(daemon: Daemon, module: str | None) -> bool:
    _ask_api(daemon.home)
    return daemon.kill(module)


def _has_api(daemon: Daemon) -> bool:
    _ask_api(daemon.home)
    return daemon.child("genesis_fp16.api") is not None


def _ask_api(home: Path) -> None:
    """Make the process of the API start, without waiting for its answer."""
    connection = Connection(home / "control.sock")
    with suppress(OSError):
        connection.request("GET", "/api/health")
    connection.close()


def _wait(holds: Callable[[], object]) -> None:
    until = time.monotonic() + _PATIENCE_SECONDS
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError("the daemon did not do what the benchmark waits for")
        time.sleep(0.1)
