"""Takes over an attempt that an earlier daemon has begun."""

from __future__ import annotations

from pathlib import Path

import structlog

from genesis_fp16.domain.attempt import attempt_folder
from genesis_fp16.domain.run import RunState
from genesis_fp16.executors import Executor, ExitStatus
from genesis_fp16.runs.active_attempt import ActiveAttempt
from genesis_fp16.settings import Settings

log = structlog.get_logger()


def take_over(
    active: ActiveAttempt, executor: Executor, settings: Settings, now: float
) -> RunState:
    """Go on with the attempt's job, or await the end of its process; end it if that is gone.

    A process that is still alive sees the end of its stdin and stops by itself; at the stop
    deadline it is killed. A job whose files are in another home is ended by its engine, and its
    end is awaited. *now* is in monotonic seconds.

    Returns:
        The state of its run.
    """
    run = active.run
    active.recorded_state = run.state
    folder = attempt_folder(settings.home, active.attempt)
    job = executor.find(folder)
    if job is not None and executor.recover(job):
        active.adopt(job)
        log.info("job_adopted", agent=run.agent, run_id=run.id, job=job.job)
        return run.state
    active.mark_orphaned(now + settings.stop_timeout_seconds)
    if active.handle is not None:
        alive = executor.recover(active.handle)
    else:  # no process of a machine: perhaps a job, and its files are in another home
        if not _exists(folder):
            active.handle = executor.end_foreign(run.agent, active.attempt, folder)
        alive = active.handle is not None
    log.info("orphan_found", agent=run.agent, run_id=run.id, alive=alive)
    if alive:
        return RunState.STOPPING
    active.end(ExitStatus())
    return run.state


def _exists(folder: Path) -> bool:
    """Whether *folder* exists; False also while storage fails.

    The engine then ends the job: no attempt begins while one may train whose files nobody can read.
    """
    try:
        return folder.exists()
    except OSError:
        return False
