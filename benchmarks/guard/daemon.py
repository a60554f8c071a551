"""The real daemon in a real process, with the planted agents installed, for `benchmarks.guard`."""

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

from benchmarks.guard import agents as planted_agents
from benchmarks.guard import faults as planted_faults
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from infrastructure.events import Event, EventTail

POLL_SECONDS = 0.05
READY_SECONDS = 240.0


class DaemonFailedError(RuntimeError):
    """The daemon ended, or did not do in time what was waited for.

    Args:
        what: It was to do.
        log: What it printed.
    """

    def __init__(self, what: str, log: str) -> None:
        super().__init__(f"waited in vain for the daemon {what}; it said last:\n{log[-3000:]}")


class FaultDaemon:
    """``genesis-fp16 serve`` in *folder*, told everything by the settings file there.

    Args:
        folder: Empty; takes settings, home and log.
        agents: Names of those to install, of `planted_agents.PLANS`.
        settings: Variables of the settings file.

    Attributes:
        store: Of the running daemon.
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
    def serving(self) -> Iterator[FaultDaemon]:
        """Start it, wait until it is ready, and end it."""
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
        """Put the plugin where the daemon finds it, with the metadata an installer would write."""
        site = self._folder / "site"
        metadata, package = site / "planted_agents-1.0.dist-info", site / "benchmarks"
        for made in (metadata, package):
            made.mkdir(parents=True)
        for module in (planted_agents, planted_faults):
            shutil.copy(str(module.__file__), package)
        (metadata / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: planted-agents\nVersion: 1.0\n"
        )
        lines = [
            f"{name} = {planted_agents.__name__}:agents.{name.replace('-', '_')}\n"
            for name in self._agents
        ]
        (metadata / "entry_points.txt").write_text("".join(["[genesis.agents]\n", *lines]))

    def configure(self, **changes: object) -> float:
        """Change settings by swapping the file, as an editor does; the Unix time it was done."""
        self._settings |= changes
        written = self._folder / ".env.new"
        written.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
        written.rename(self._folder / ".env")
        return time.time()

    @property
    def log(self) -> str:
        """All that it has printed."""
        return (self._folder / "daemon.log").read_text(errors="replace")

    def new_events(self, run_ids: Iterable[str]) -> Iterator[tuple[str, Event]]:
        """Yield the events of these runs that were not yielded before, each with its run."""
        for run_id in run_ids:
            for path in (self._home / "runs" / run_id).glob("attempts/*/events.ndjson"):
                for event in self._tails.setdefault(path, EventTail(path)).read():
                    yield run_id, event

    def events(self, run_id: str) -> list[Event]:
        """All events of a run, attempt by attempt."""
        paths = (self._home / "runs" / run_id).glob("attempts/*/events.ndjson")
        return [event for path in sorted(paths) for event in EventTail(path).read()]

    def wait_for(self, holds: Callable[[], object], seconds: float, what: str) -> None:
        """Wait until *holds* is true.

        Raises:
            DaemonFailedError: It was not, for so long, or the daemon has ended.
        """
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise DaemonFailedError(what, self.log)
            time.sleep(POLL_SECONDS)
