"""The real daemon in a process of its own, with the agents of this benchmark installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.guard import agents as agents_module
from benchmarks.guard import faults as faults_module
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from infrastructure.events import Event, EventTail

POLL_SECONDS = 0.05
READY_SECONDS = 240.0


class DaemonFailedError(RuntimeError):
    """The daemon ended or missed a deadline.

    Args:
        expected: Missing event, after "the daemon was expected".
        log: Output of the daemon.
    """

    def __init__(self, expected: str, log: str) -> None:
        super().__init__(f"the daemon was expected {expected}; end of its log:\n{log[-3000:]}")


class DaemonProcess:
    """``genesis-fp16 serve`` in *folder*, configured by the settings file there.

    Args:
        folder: Empty folder for settings, home and log.
        agents: Names in `agents.PLANS` of the agents to install.
        settings: Variables of the settings file.

    Attributes:
        store: Store of the running daemon.
    """

    store: Store

    def __init__(self, folder: Path, agents: Sequence[str], settings: dict[str, object]) -> None:
        self._folder, self._home, self._agents = folder, folder / "home", agents
        self._settings = {
            "GENESIS_HOME": self._home,
            "GENESIS_METRICS_PORT": 0,
            "GENESIS_CPU_HALF": "true",
            "GENESIS_DEVICE": "cpu",
            "GENESIS_LOG_FORMAT": "json",
            "GENESIS_AGENTS__SE_DARWIN__ENABLED": "false",
            **settings,
        }
        self._tails: dict[Path, EventTail] = {}

    @contextmanager
    def serving(self) -> Iterator[DaemonProcess]:
        """Start the daemon, wait until it is ready, and stop it at the end."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._install()
        self.configure()
        program = Path(sys.executable).with_name("genesis-fp16")
        environment = {"PATH": os.defpath, "PYTHONPATH": str(self._folder / "site")}
        with (self._folder / "daemon.log").open("wb") as output:
            self._process = subprocess.Popen(
                [program, "serve"],
                cwd=self._folder,
                env={**environment, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            self.wait_for(lambda: "daemon_ready" in self.log, READY_SECONDS, "to be ready")
            with closing(Store.open(Settings(home=self._home))) as self.store:
                yield self
        finally:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout=60)

    def _install(self) -> None:
        """Install the plugin where the daemon finds it, with an installer's metadata."""
        site = self._folder / "site"
        metadata = site / "guard_benchmark_agents-1.0.dist-info"
        package = site / "benchmarks" / "guard"
        for folder in (metadata, package):
            folder.mkdir(parents=True)
        for module in (agents_module, faults_module):
            shutil.copy(str(module.__file__), package)
        (metadata / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: guard-benchmark-agents\nVersion: 1.0\n"
        )
        lines = [
            f"{name} = {agents_module.__name__}:agents.{name.replace('-', '_')}\n"
            for name in self._agents
        ]
        (metadata / "entry_points.txt").write_text("".join(["[genesis.agents]\n", *lines]))

    def configure(self, **changes: object) -> float:
        """Change settings by replacing the file, as an editor does; return the Unix time."""
        self._settings |= changes
        new_file = self._folder / ".env.new"
        new_file.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
        new_file.rename(self._folder / ".env")
        return time.time()

    @property
    def log(self) -> str:
        """Output of the daemon so far."""
        return (self._folder / "daemon.log").read_text(errors="replace")

    def new_events(self, run_ids: Iterable[str]) -> Iterator[tuple[str, Event]]:
        """Yield the events of these runs that were not yielded before, with their run ids."""
        for run_id in run_ids:
            for path in (self._home / "runs" / run_id).glob("attempts/*/events.ndjson"):
                for event in self._tails.setdefault(path, EventTail(path)).read():
                    yield run_id, event

    def events(self, run_id: str) -> list[Event]:
        """Return all events of a run, attempt by attempt."""
        paths = (self._home / "runs" / run_id).glob("attempts/*/events.ndjson")
        return [event for path in sorted(paths) for event in EventTail(path).read()]

    def wait_for(
        self,
        condition: Callable[[], object],
        seconds: float,
        expected: str,
        *,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """Wait until *condition* is true, asked every *poll_seconds*.

        Raises:
            DaemonFailedError: It did not become true in time, or the daemon ended.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise DaemonFailedError(expected, self.log)
            time.sleep(poll_seconds)
