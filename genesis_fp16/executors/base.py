"""The interface between the dispatcher and the place where workers run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from genesis_fp16.domain.attempt import Attempt
from genesis_fp16.domain.run_spec import RunSpec
from infrastructure.events import Command


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """An attempt's worker: a process of this machine, or a job of an engine.

    Attributes:
        pid: Process id; also the id of its session and process group; 0 for a job.
        started_at: Start time of the process in Unix seconds, as the kernel reports it; it
            distinguishes the process from a later one with the same pid.
        job: Name of the job, see `JobRequest`; empty for a process.
        folder: The attempt's folder on shared storage; None for a process.
    """

    pid: int = 0
    started_at: float = 0.0
    job: str = ""
    folder: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExitStatus:
    """How a worker ended; neither code nor signal if nobody saw it end.

    Attributes:
        exit_code: None if a signal ended it.
        signal: Number of the signal that ended it.
        error: Why the worker could not run or was lost, for a person; empty if it says so itself.
    """

    exit_code: int | None = None
    signal: int | None = None
    error: str = ""


class Executor(Protocol):
    """Starts, polls, commands and ends workers. No method waits for a worker or an engine."""

    def submit(self, spec: RunSpec) -> Handle:
        """Start the worker of one attempt.

        Raises:
            OSError: The worker cannot be started.
        """

    def poll(self, handle: Handle) -> ExitStatus | None:
        """How the worker ended, or None while it lives; its descendants end with it."""

    def send(self, handle: Handle, command: Command) -> None:
        """Send *command*; a worker that has closed its stdin does not receive it."""

    def extend_lease(self, until: float) -> None:
        """Let workers that end with the daemon run until then, in monotonic seconds, and no longer.

        No engine is asked for a job later than that. Without a call there is no limit. Safe in
        another thread.
        """

    def kill(self, handle: Handle) -> bool:
        """End the worker and all its descendants at once.

        Returns:
            Whether it may have been alive.
        """

    def find(self, folder: Path) -> Handle | None:
        """Handle of the job that an earlier daemon ordered for the attempt in *folder*, if any."""

    def end_foreign(self, agent: str, attempt: Attempt, folder: Path) -> Handle | None:
        """Have the job of an attempt end whose files are in another daemon's home.

        Args:
            folder: Where its files would be if they were here.

        Returns:
            Handle of the job; `poll` tells when nothing of it runs any more. None if no job can be
            ended from here.
        """

    def recover(self, handle: Handle) -> bool:
        """Take over a worker that an earlier daemon started; False if it has ended."""

    def waiting(self, handle: Handle) -> str:
        """What the worker waits for before it starts, for a person; empty once it has started."""

    def trouble_seconds(self) -> float:
        """Seconds for which the cluster has refused or not answered; 0 if it does neither."""

    def unreachable(self, handle: Handle) -> str:
        """Why what the worker writes cannot be read at present; empty if it can."""

    def keep_spare(self, wanted: bool) -> None:
        """Keep a process ready for the next attempt, where that is possible."""

    def close(self) -> None:
        """Release what belongs to this process alone; workers go on."""
