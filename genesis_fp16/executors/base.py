"""What the dispatcher asks of an executor, wherever the worker runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from genesis_fp16.domain.run_spec import RunSpec
from infrastructure.events import Command


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """A worker process, told apart from a later one with the same pid.

    Attributes:
        pid: Process id; also the id of its session and process group.
        started_at: Start time of the process, Unix time in seconds, as the kernel has it.
    """

    pid: int
    started_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ExitStatus:
    """How a worker ended; neither is known of one that this process did not start.

    Attributes:
        exit_code: None if a signal ended it.
        signal: Number of the signal that ended it.
    """

    exit_code: int | None = None
    signal: int | None = None


class Executor(Protocol):
    """Starts, watches, commands and ends workers. No method blocks on the worker."""

    def submit(self, spec: RunSpec) -> Handle:
        """Start the worker of one attempt.

        Raises:
            OSError: It cannot be started.
        """

    def poll(self, handle: Handle) -> ExitStatus | None:
        """How the worker ended, or None while it lives; the rest of its process tree is gone."""

    def send(self, handle: Handle, command: Command) -> None:
        """Pass *command* on; a worker that no longer listens does not get it."""

    def stop(self, handle: Handle, reason: str) -> None:
        """Ask the worker to checkpoint and exit with 75."""

    def kill(self, handle: Handle) -> None:
        """End the worker and all its descendants at once."""

    def recover(self, handle: Handle) -> bool:
        """Take over a worker that an earlier daemon started; False if it is gone."""
