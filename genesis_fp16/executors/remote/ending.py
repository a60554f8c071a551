"""How the jobs of an engine end, by their files and by the engine's last answers."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from genesis_fp16.executors.base import ExitStatus
from genesis_fp16.executors.job_files import is_claimed, last_heartbeat, read_result, revoke
from genesis_fp16.executors.remote.engine import ENGINE_LOG
from genesis_fp16.executors.remote.job import GONE, Job

KILLED_GRACE_SHARE = 0.2  # of the grace time, if the job was killed
RETRY_SECONDS = 2.0  # after a run could not be taken from its job

log = structlog.get_logger()


class Endings:
    """Decides whether a job has ended, and how.

    A result file decides. Without one, an engine that says that the job is gone may be mistaken, or
    storage may show the result late: both have the grace time.

    Args:
        engine: Name of the engine.
        grace_seconds: Time for the result of a job that the engine says is gone.
        end: Has the engine end a job.

    Attributes:
        grace_seconds: As given.
    """

    def __init__(self, engine: str, grace_seconds: float, end: Callable[[Job], None]) -> None:
        self.grace_seconds = grace_seconds
        self._engine, self._end = engine, end

    def of(self, job: Job, now: float) -> ExitStatus | None:
        """How *job* ended; None while its worker may still run, or while nobody knows.

        Args:
            job: The job; what is seen of it is noted there.
            now: Monotonic seconds.
        """
        return self._of_foreign(job, now) if job.foreign else self._of_own(job, now)

    def _of_own(self, job: Job, now: float) -> ExitStatus | None:
        """Its end as its files tell it, or the engine and the grace time."""
        result = read_result(job.folder, job.incarnation)
        if result is not None:
            return ExitStatus(exit_code=result.exit_code, signal=result.signal, error=result.error)
        if job.refused:  # the engine may have taken it all the same
            refused = ExitStatus(exit_code=os.EX_CONFIG, error=job.refused)
            return refused if self._take_away(job) else None
        job.started = job.started or is_claimed(job.folder)
        if job.killed and not job.started:  # no answer of the engine is worth the wait
            return ExitStatus() if self._take_away(job) else None
        if job.status.state not in GONE or (job.mirror and job.mirror.behind and not job.killed):
            job.gone_at = math.inf
            return None
        beat = last_heartbeat(job.folder)
        if job.gone_at == math.inf or beat != job.heartbeat:  # an engine may be mistaken
            job.gone_at, job.heartbeat = now, beat
        grace = self.grace_seconds * (KILLED_GRACE_SHARE if job.killed else 1.0)
        give_up = job.gone_at + grace
        is_unread = job.mirror is not None and not job.killed and job.mirror.looked_at < give_up
        # A launcher that comes back all the same must not go on.
        if now < give_up or is_unread or not self._take_away(job):
            return None
        return ExitStatus(
            error=f"the job {job.name} is gone without a result: {self._engine} says {job.status}; "
            f"it was deleted or killed, or its machine failed; see {job.folder / ENGINE_LOG}"
        )

    def _of_foreign(self, job: Job, now: float) -> ExitStatus | None:
        """Its end once the engine has said for the whole grace time that the job is gone."""
        if job.status.state not in GONE:
            job.gone_at = math.inf
            return None
        job.gone_at = min(job.gone_at, now)
        return ExitStatus() if now >= job.gone_at + self.grace_seconds else None

    def _take_away(self, job: Job) -> bool:
        """Take the run from the job and have the engine end it; False while storage fails."""
        if not revoke_run(job.name, job.folder):
            job.look_at = time.monotonic() + RETRY_SECONDS  # it stalls: not so often
            return False
        job.kill_at = 0.0
        self._end(job)
        return True


def revoke_run(job: str, folder: Path) -> bool:
    """Take the run from the attempt in *folder*; False, with a line in the log, if it fails."""
    try:
        revoke(folder)
    except OSError as error:
        log.warning("fence_not_written", job=job, error=str(error))
        return False
    return True
