"""One takeover: a run trains, its leader is lost, the standby goes on with the run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.takeover.machine import Machine
from benchmarks.takeover.postgres import Relay
from benchmarks.takeover.waiting import wait_for
from genesis_fp16.domain.run import RunState
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store

Loss = Literal["killed", "cut", "stalled", "suspended", "destroyed"]
LOSSES: Mapping[Loss, str] = {
    "killed": "the daemon is killed (SIGKILL), its workers are not",
    "cut": "its connections to the database are closed",
    "stalled": "its connections pass nothing on, and stay open",
    "suspended": "the daemon is suspended (SIGSTOP), its workers are not",
    "destroyed": "the machine ends with all its processes",
}
_STEPS = 75  # of the run before its leader is lost


@dataclass(frozen=True, kw_only=True, slots=True)
class Takeover:
    """A takeover; all times in seconds since the loss of the leader.

    Attributes:
        leads: When the standby led.
        last_step: Last step of the attempt under way; negative if before the loss.
        next_step: First step of the run's next attempt.
        attempts: Attempts of the run.
    """

    loss: Loss
    leads: float
    last_step: float
    next_step: float
    attempts: int


class DoubledRunError(AssertionError):
    """Two attempts of a run trained at the same time, or the run was lost."""


class Site:
    """Machines that share a database and, unless *separate*, a home; the agent is installed.

    Args:
        folder: Empty folder.
        server_port: Port of the database.
    """

    def __init__(self, folder: Path, server_port: int, *, separate: bool = False) -> None:
        self._folder, self._server_port, self._separate = folder, server_port, separate
        self._ledger, self._enough = folder / "ledger", folder / "enough"
        site = folder / "site"
        info = site / "ledger_plugin-1.0.dist-info"
        info.mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("ledger_agent.py"), site)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ledger-plugin\nVersion: 1.0\n")
        entry = "[genesis.agents]\nledger = ledger_agent:LedgerAgent\n"
        (info / "entry_points.txt").write_text(entry)
        self._machines = 0
        self._open = ExitStack()
        self.store = self._open.enter_context(
            closing(Store.open(Settings(home=folder / "home", database_url=self._url(server_port))))
        )

    @staticmethod
    def _url(port: int) -> str:
        return f"postgresql://postgres@127.0.0.1:{port}/postgres"

    def machine(self) -> tuple[Machine, Relay]:
        """A new machine with a standby daemon, and the relay between it and the database."""
        self._machines += 1
        name, relay = f"machine{self._machines}", Relay(self._server_port)
        self._open.callback(relay.cut)
        home = self._folder / (f"home-of-{name}" if self._separate else "home")
        machine = Machine(
            name,
            self._folder / name,
            {
                "PYTHONPATH": str(self._folder / "site"),
                "GENESIS_HOME": str(home),
                "GENESIS_DATABASE_URL": self._url(relay.port),
                "GENESIS_CHECKPOINT_INTERVAL_SECONDS": "0.5",
                "GENESIS_LOG_FORMAT": "json",
                "GENESIS_DEVICE": "cpu",
                "GENESIS_AGENTS__SE_DARWIN__ENABLED": "false",
                "GENESIS_AGENTS__LEDGER__SETTINGS__LEDGER": str(self._ledger),
                "GENESIS_AGENTS__LEDGER__SETTINGS__ENOUGH": str(self._enough),
            },
        )
        self._open.callback(machine.destroy)
        return machine, relay

    def close(self) -> None:
        """End all machines."""
        self._open.close()

    def take_over(self, leader: Machine, relay: Relay, standby: Machine, loss: Loss) -> Takeover:
        """Lose *leader* in the middle of a run, and follow the run on *standby* to its end.

        Raises:
            DoubledRunError: The run was lost, or done twice at a time.
            TimeoutError: Nothing happened for minutes.
        """
        self._enough.unlink(missing_ok=True)
        run = self.store.enqueue("ledger", first_seed=0).id
        wait_for(lambda: len(self._steps(run)) >= _STEPS, "the run to train")
        lost_at = time.monotonic()
        match loss:
            case "killed":
                leader.kill_daemon()
            case "cut":
                relay.cut()
            case "stalled":
                relay.stall()
            case "suspended":
                leader.suspend_daemon()
            case "destroyed":
                leader.destroy()
        leads = wait_for(standby.leads, "the standby to lead", every_seconds=0.02)
        wait_for(lambda: {number for number, _ in self._steps(run)} != {1}, "the run to go on")
        self._enough.touch()
        wait_for(lambda: self._state(run) is not None, "the run to end")
        attempts: dict[int, list[float]] = {}
        for number, at in self._steps(run):
            attempts.setdefault(number, []).append(at)
        if self._state(run) is not RunState.SUCCEEDED:
            raise DoubledRunError(f"the run {run} was lost: {self.store.run(run)}")
        for number in sorted(attempts)[1:]:
            earlier = max(at for each, times in attempts.items() if each < number for at in times)
            if min(attempts[number]) <= earlier:
                raise DoubledRunError(f"attempts of {run} trained at a time: {attempts}")
        return Takeover(
            loss=loss,
            leads=leads - lost_at,
            last_step=max(attempts[1]) - lost_at,
            next_step=min(attempts[2]) - lost_at,
            attempts=len(self.store.attempts(run)),
        )

    def _state(self, run_id: str) -> RunState | None:
        """State of a run that has ended; else None."""
        run = self.store.run(run_id)
        return run.state if run is not None and run.finished else None

    def _steps(self, run_id: str) -> list[tuple[int, float]]:
        """Attempt and monotonic time of each step of the run."""
        if not self._ledger.exists():
            return []
        lines = (line.split() for line in self._ledger.read_text().splitlines())
        return [(int(attempt), float(at)) for run, attempt, at in lines if run == run_id]


@contextmanager
def site(folder: Path, server_port: int, *, separate: bool = False) -> Iterator[Site]:
    """A `Site` that is closed at the end of the block."""
    found = Site(folder, server_port, separate=separate)
    try:
        yield found
    finally:
        found.close()
