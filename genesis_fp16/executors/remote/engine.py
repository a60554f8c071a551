"""What a cluster's own scheduler must do for us: take a job, say whether it lives, and end it.

An engine decides nothing about a run. Whether an attempt succeeded is in the result file that its
launcher writes; the engine only says whether anything can still write one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from genesis_fp16.domain.errors import GenesisError

ENGINE_LOG = "engine.log"  # in the attempt's folder: output of the job before its worker has a log


class EngineError(GenesisError, RuntimeError):
    """An engine refused a request or cannot be reached: what, where, and the remedy.

    Attributes:
        temporary: Whether the same request may succeed later, because the engine is down, slow or
            full; else a person must change something first.
    """

    def __init__(self, message: str, *, temporary: bool) -> None:
        super().__init__(message)
        self.temporary = temporary


class JobState(StrEnum):
    """What the engine knows about a job. `UNKNOWN` and `NOT_FOUND` are not `FAILED`."""

    WAITING = "waiting"  # in the engine's queue: nothing of ours has started
    RUNNING = "running"  # or ending
    NOT_FOUND = "not found"  # the engine answered, and has no record of the job
    FAILED = "failed"
    SUCCEEDED = "succeeded"
    UNKNOWN = "unknown"  # the engine did not answer, or not about this job


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """State of a job, and why, in words for a person.

    Attributes:
        reason: For `WAITING` what the job waits for; for `UNKNOWN` why the engine did not answer;
            for `FAILED` what the engine says; may be empty.
        leave: Why a running job should checkpoint and continue on another machine, for example
            that its own is being drained; empty if it may stay. `Engine.stop` follows.
    """

    state: JobState
    reason: str = ""
    leave: str = ""

    def __str__(self) -> str:
        return f"{self.state} ({self.reason})" if self.reason else str(self.state)


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """What a job asks the engine for; None leaves it to the engine's default.

    Attributes:
        cpus: CPU cores of the whole job, one for each rank at least.
        gpus: GPUs of the whole job; 0 for none.
        memory_mib: Memory of the whole job in MiB.
        minutes: Minutes after which the engine may end the job.
    """

    cpus: int = 1
    gpus: int = 0
    memory_mib: int | None = None
    minutes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRef:
    """A job of an engine.

    Attributes:
        name: Our name of the job, see `JobRequest`.
        id: The engine's own id, as `Engine.submit` returned it; empty if no daemon could record it.
    """

    name: str
    id: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRequest:
    """One job: one attempt on one machine of the cluster.

    Attributes:
        name: ``genesis-<agent>-<run>-<attempt>-<incarnation>``: at most 63 characters of
            ``[a-z0-9-]``, and never used for another job.
        command: Program and arguments, at the same paths on every machine.
        folder: The attempt's folder on shared storage; the job's output goes to `ENGINE_LOG` there.
            None if no folder is shared: the engine keeps the output as it does for any job.
        resources: What the job asks for.
        processes: Ranks that the command starts on the one machine; 1 without torchrun.
        stop_seconds: Time between SIGTERM and SIGKILL, where the engine lets a job choose it.
        labels: ``agent``, ``run``, ``attempt`` and ``incarnation``, for engines that label jobs.
    """

    name: str
    command: tuple[str, ...]
    folder: Path | None
    resources: Resources
    processes: int = 1
    stop_seconds: float = 30.0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was checked before the first run is lost to it.

    Attributes:
        ok: Whether jobs can run as far as this check can tell.
        what: What was found, for example ``slurm 22.05.8, 2 nodes ready``.
        remedy: What to do about it; empty if it is ok.
    """

    ok: bool
    what: str
    remedy: str = ""

    @classmethod
    def of_error(cls, error: EngineError) -> Finding:
        """What *error* says; its remedy follows the last semicolon of the message."""
        what, _, remedy = str(error).rpartition("; ")
        return cls(ok=False, what=what or remedy, remedy=remedy if what else "")


class Engine(Protocol):
    """The scheduler of a cluster.

    Calls may take seconds; `RemoteExecutor` makes all but `check` from one thread of its own. An
    engine must never restart a job by itself: the daemon starts the next attempt.
    """

    @property
    def name(self) -> str:
        """``slurm``, ``ray`` or ``kubernetes``."""

    def submit(self, job: JobRequest) -> str:
        """Ask for *job*; return the engine's own id of it.

        Idempotent: if a job of this name exists, in any state, its id is returned and nothing is
        started.

        Raises:
            EngineError: The engine refused, or did not answer.
        """

    def statuses(self, jobs: Sequence[JobRef]) -> Mapping[str, JobStatus]:
        """Status of each of *jobs* by name, if possible with one request for all.

        Raises no `EngineError`: while the engine does not answer, every job is `UNKNOWN`.
        """

    def stop(self, job: JobRef) -> None:
        """Send SIGTERM to the launcher, which checkpoints and ends; no error if the job is gone.

        Raises:
            EngineError: The engine refused, or did not answer.
        """

    def kill(self, job: JobRef) -> None:
        """End *job* at once, also while it waits; no error if it is gone.

        Raises:
            EngineError: The engine refused, or did not answer.
        """

    def check(self) -> list[Finding]:
        """What the engine lacks: client, address, rights, version, machines, clock."""

    def close(self) -> None:
        """Release connections; jobs go on."""
