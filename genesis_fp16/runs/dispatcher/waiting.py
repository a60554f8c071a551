"""What an attempt waits for: the queue of an engine, or storage that does not answer."""

from __future__ import annotations

import structlog

from genesis_fp16.executors import Executor
from genesis_fp16.runs.active_attempt import ActiveAttempt
from infrastructure.events.plain_text import plain

log = structlog.get_logger()


def note_engine(active: ActiveAttempt, executor: Executor, now: float) -> None:
    """Take note of whether the attempt's job waits, and for what.

    While it does, no deadline counts. *now* is in monotonic seconds.
    """
    if active.handle is None or active.progress.started:
        return
    before, reason = active.waiting, plain(executor.waiting(active.handle))
    active.wait(reason, max(0.0, now - active.asked_at), now)
    active.asked_at = now
    if reason != before:
        active.save_at = now
        event = "job_waits" if reason else "job_starts"
        log.info(event, agent=active.run.agent, run_id=active.run.id, reason=reason)


def note_storage(active: ActiveAttempt, error: OSError | None, now: float) -> None:
    """Take note of the *error* that reading the attempt's events has met; None if it met none.

    Until they can be read again, the worker's silence is not counted; the run's own deadline is.
    """
    run, trouble = active.run, "" if error is None else f"its events cannot be read: {error}"
    if error is not None:
        active.progress.excuse_silence(now)
    if bool(trouble) == bool(active.unreadable):
        return
    active.unreadable, active.save_at = trouble, now
    if error is None:
        log.info("events_readable", agent=run.agent, run_id=run.id)
    else:
        log.warning(
            "events_unreadable",
            agent=run.agent,
            run_id=run.id,
            error=str(error),
            remedy="see the disk or the shared folder; the daemon tries again by itself",
        )
