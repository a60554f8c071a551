"""Records in the store how an attempt goes and how it ended."""

from __future__ import annotations

from dataclasses import replace

import structlog

from genesis_fp16.domain.attempt import attempt_folder
from genesis_fp16.domain.run import (
    Ending,
    RetryPolicy,
    RunState,
    RunSummary,
    RunTransition,
    resolve_ending,
)
from genesis_fp16.runs.active_attempt import ActiveAttempt
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from infrastructure.events.plain_text import plain

SAVE_INTERVAL_SECONDS = 1.0
SAVE_BYTES = 1 << 16  # of events read, after which progress is saved at once

log = structlog.get_logger()


def save_if_due(active: ActiveAttempt, store: Store, now: float) -> None:
    """Save the progress if it is time to, or much was read; *now* is in monotonic seconds."""
    if now >= active.save_at or active.unsaved_bytes >= SAVE_BYTES:
        _save(active, store, active.progress.summary)
        active.save_at = now + SAVE_INTERVAL_SECONDS


def record_worker(active: ActiveAttempt, store: Store) -> None:
    """Record which process or job is the attempt's worker."""
    if active.handle is not None:
        store.update_attempt(active.attempt.incarnation, **active.worker_columns)


def record_end(
    active: ActiveAttempt, ending: Ending, store: Store, settings: Settings
) -> RunTransition:
    """Record how the attempt ended, and the next state of its run.

    Returns:
        What comes of the run.
    """
    policy = RetryPolicy(
        max_attempts=settings.max_attempts, backoff_seconds=settings.retry_backoff_seconds
    )
    transition = resolve_ending(
        ending,
        failures=active.run.failures,
        policy=policy,
        attempts=active.attempt.number,
    )
    summary = active.progress.summary
    home = settings.home
    if transition.failed and summary.error is None and active.exit_status is not None:
        summary = replace(summary, error=plain(active.exit_status.error) or None)
    if transition.failed and summary.error is None:
        disk = "" if ending.cause else "whether its disk has free space, and "
        worker_log = attempt_folder(home, active.attempt) / "worker.log"
        summary = replace(summary, error=f"{ending}; see {disk}{worker_log}")
    _save(active, store, summary)
    store.end_attempt(
        active.attempt,
        ending,
        transition,
        finished_at=active.ended_at(home, store.now()),
        error=summary.error if transition.failed else None,
    )
    _log_refused_events(active)
    if transition.state is RunState.QUEUED:
        log.info(
            "run_requeued",
            agent=active.run.agent,
            run_id=active.run.id,
            ending=str(ending),
            delay_seconds=transition.delay_seconds,
        )
    return transition


def record_daemon_error(active: ActiveAttempt, store: Store) -> None:
    """Record that the run has failed by the attempt's `daemon_error`."""
    run, transition = active.run, RunTransition(state=RunState.FAILED, failed=True)
    error = active.daemon_error
    store.update_summary(run.id, replace(RunSummary.of(run), error=error))
    store.end_attempt(active.attempt, Ending(), transition, finished_at=store.now(), error=error)
    _log_refused_events(active)


def _save(active: ActiveAttempt, store: Store, summary: RunSummary) -> None:
    """Save *summary* together with how far the events were read: none counts twice."""
    offset = active.progress.tail.offset
    columns: dict[str, float | str | None] = {"events_offset": offset}
    columns["ending"] = active.progress.outcome
    columns |= active.worker_columns  # again: the store may have failed right after the start
    store.save_progress(active.attempt, summary, **columns)
    active.saved_offset = offset


def _log_refused_events(active: ActiveAttempt) -> None:
    """Log how many events of an attempt that has ended were not accepted."""
    if problems := active.progress.problems:
        log.warning("events_refused", agent=active.run.agent, run_id=active.run.id, **problems)
