"""The interface between the dispatcher and the place where workers run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from genesis_fp16.domain.run_spec import RunSpec
from infrastructure.events import Command


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """An attempt's worker; the start time distinguishes it from a later one with the same pid.

    Attributes:
        pid: Process id; also the id of its session and process group.
        started_at: Start time of the process in Unix seconds, as the kernel reports it.
        hosted: Incarnation of the attempt, if the process hosts several; else empty.
    """

    pid: int
    started_at: float
    hosted: str = ""

    @property
    def process(self) -> Handle:
        """Equal for all attempts in one process."""
        return replace(self, hosted="")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExitStatus:
    """How a worker ended; both are None if this process did not start it.

    Attributes:
        exit_code: None if a signal ended it.
        signal: Number of the signal that ended it.
    """

    exit_code: int | None = None
    signal: int | None = None


class Executor(Protocol):
    """Starts, polls, commands and ends workers. No method waits for the worker."""

    def submit(self, spec: RunSpec) -> Handle:
        """Start the worker of one attempt.

        Raises:
            OSError: The worker cannot be started.
        """

    def submit_fleet(self, specs: Sequence[RunSpec]) -> list[Handle]:
        """Start one worker for several attempts; return their handles, in order.

        Raises:
            OSError: The worker cannot be started.
        """

    def poll(self, handle: Handle) -> ExitStatus | None:
        """How the worker ended, or None while it lives; its descendants end with it.

        Poll each attempt of a worker that hosts several until its end is known.
        """

    def send(self, handle: Handle, command: Command) -> None:
        """Send *command*; a worker that has closed its stdin does not receive it."""

    def kill(self, handle: Handle) -> None:
        """End the worker, with all attempts that it hosts, and all its descendants at once."""

    def recover(self, handle: Handle) -> bool:
        """Take over a worker that an earlier daemon started; False if it has ended."""
