"""What is known of a job that is followed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from genesis_fp16.executors.bucket import AttemptMirror
from genesis_fp16.executors.job_files import append_commands
from genesis_fp16.executors.remote.engine import JobRef, JobRequest, JobState, JobStatus

GONE = (JobState.NOT_FOUND, JobState.FAILED, JobState.SUCCEEDED)

log = structlog.get_logger()


@dataclass(slots=True)
class Job:
    """An attempt's job, followed until its end is known.

    Attributes:
        request: What is still to be submitted; None once the engine has it.
        id: The engine's id.
        status: The engine's last answer.
        started: Whether its launcher may have started.
        killed: Whether it is to end at once.
        leaves: Whether it has been told to stop, to continue on another machine.
        tries: Failed tries to submit it.
        kill_at: Monotonic seconds from which the engine is asked to end it.
        refused: Why the engine will never take it; empty if it may.
        trouble: Why it could not be submitted yet.
        submit_at, look_at: Monotonic seconds of the next try to submit it, and the next look.
        gone_at: Monotonic seconds since when it has given no sign of life.
        heartbeat: The launcher's last, as of then.
        unsent: Commands that could not be written yet.
        over: Whether its end has been reported.
        foreign: Whether its files are in another daemon's home, so that the engine alone knows it.
        mirror: Of its folder, if its machine does not share it.
    """

    name: str
    folder: Path
    incarnation: str
    request: JobRequest | None
    id: str = ""
    status: JobStatus = field(default_factory=lambda: JobStatus(state=JobState.UNKNOWN))
    started: bool = False
    killed: bool = False
    kill_at: float = 0.0
    leaves: bool = False
    refused: str = ""
    trouble: str = ""
    tries: int = 0
    submit_at: float = 0.0
    look_at: float = 0.0
    gone_at: float = math.inf
    heartbeat: float = 0.0
    unsent: bytes = b""
    over: bool = False
    foreign: bool = False
    mirror: AttemptMirror | None = None

    @property
    def ref(self) -> JobRef:
        """As the engine is asked about it."""
        return JobRef(name=self.name, id=self.id)

    def flush(self) -> None:
        """Write the commands that wait; what cannot be written now waits on."""
        if self.unsent:
            try:
                append_commands(self.folder, self.unsent)
            except OSError as error:
                log.warning("command_not_written", job=self.name, error=str(error))
            else:
                self.unsent = b""
