"""From the queue into slots: starts attempts, follows them, ends them, decides what comes next."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from genesis_fp16.domain.attempt import attempt_folder
from genesis_fp16.domain.listener import EventListener
from genesis_fp16.domain.run import (
    TERMINAL,
    Ending,
    RetryPolicy,
    Run,
    RunState,
    RunSummary,
    StopCause,
    Verdict,
    decide,
)
from genesis_fp16.executors import Executor, ExitStatus, Handle
from genesis_fp16.runs.active_attempt import ActiveAttempt
from genesis_fp16.runs.spec import make_spec
from genesis_fp16.settings.settings import Settings
from genesis_fp16.store import Store
from infrastructure.events import PrecisionState, SetPrecision

SAVE_INTERVAL_SECONDS = 1.0

log = structlog.get_logger()


class Dispatcher:
    """Owns every attempt from its start to the verdict on its run.

    Args:
        store: The queue and the history.
        executor: Runs the workers.
        settings: In force; assign `settings` anew after a reload.
        agents: Name to entry point of the agents that may run.
        precision: The decision in force for a run, asked in every round.
        listener: Told what happens; it must not raise, see `Listeners`.

    Attributes:
        settings: In force.
        queued: Runs that wait, as of the last round.
    """

    def __init__(
        self,
        store: Store,
        executor: Executor,
        settings: Settings,
        agents: Mapping[str, str],
        precision: Callable[[Run], PrecisionState],
        listener: EventListener,
    ) -> None:
        self.settings = settings
        self.queued = 0
        self._store = store
        self._executor = executor
        self._agents = agents
        self._precision = precision
        self._listener = listener
        self._works: dict[str, ActiveAttempt] = {}
        self._announced: dict[str, RunState] = {}
        self._dying: list[Handle] = []

    @property
    def busy(self) -> int:
        """Slots in use."""
        return len(self._works)

    @property
    def alive(self) -> int:
        """Workers that have neither ended nor been given up, as of the last round."""
        works = self._works.values()
        return sum(not (w.broken or w.status or w.handle is None) for w in works)

    def recover(self, now: float) -> None:
        """Take over what an earlier daemon left open; call it once, before the first round.

        A worker that outlived it sees the end of its stdin and stops by itself; it has until
        the stop deadline. One that is gone is judged at once.

        Args:
            now: Monotonic seconds.
        """
        for run in self._store.unfinished():
            if run.active:
                self._guarded(run, self._adopt, run, now)

    def tick(self, now: float, *, only: str | None = None) -> None:
        """One round: follow the attempts under way, then start what is due and has a slot.

        Args:
            now: Monotonic seconds.
            only: Start no other run than this one.
        """
        for run in self.attend(now):
            if run.state is not RunState.QUEUED or only not in (None, run.id):
                continue
            if run.cancel_requested:
                self._cancel(run, None)
            elif not self.settings.for_agent(run.agent).enabled:
                self._cancel(run, f"the agent {run.agent} is disabled by its ENABLED=false")
            elif self._may_start(run):
                self._guarded(run, self._start, run, now)

    def attend(self, now: float) -> list[Run]:
        """Follow the attempts under way and record it, starting no other; *now* as in `follow`.

        Returns:
            Unfinished runs as they were before, the longest due first.
        """
        self.follow(now)
        unfinished = self._store.unfinished()
        self.queued = sum(run.state is RunState.QUEUED for run in unfinished)
        for run in unfinished:
            if run.id not in self._works:
                self._announce(run, run.state)
                if run.active:  # its row could not be read before
                    self._guarded(run, self._adopt, run, now)
        cancelled = {run.id for run in unfinished if run.cancel_requested}
        for run_id, work in list(self._works.items()):
            self._guarded(work.run, self._record, work, now, run_id in cancelled)
        return unfinished

    def follow(self, now: float) -> None:
        """Do what a failing store must not hold up: pass on events, tell precision, stop, kill.

        Args:
            now: Monotonic seconds.
        """
        self._dying = [worker for worker in self._dying if self._executor.poll(worker) is None]
        for work in list(self._works.values()):
            if not work.broken:
                self._guarded(work.run, self._follow, work, now)

    def stop_all(self, now: float) -> None:
        """Ask every attempt to checkpoint and stop; `attend` until `busy` is 0."""
        for work in self._works.values():
            if work.cause is None:
                self._stop(work, StopCause.SHUTDOWN, now)

    def kill_all(self) -> None:
        """End every worker at once."""
        for work in self._works.values():
            if work.handle is not None:
                self._executor.kill(work.handle)

    def _may_start(self, run: Run) -> bool:
        return (
            run.is_available(self._store.now(), self.settings.retry_backoff_seconds)
            and len(self._works) < self.settings.slots
            and run.agent in self._agents
            and all(work.run.agent != run.agent for work in self._works.values())
        )

    def _adopt(self, run: Run, now: float) -> None:
        """Work on a *run* that another daemon has begun."""
        open_ones = [each for each in self._store.attempts(run.id) if each.finished_at is None]
        if not open_ones:
            self._fail(run, "its attempt cannot be read, see row_unreadable in the daemon's log")
            return
        self._works[run.id] = work = ActiveAttempt.on(run, open_ones[-1], self.settings, now)
        work.orphan(now + self.settings.stop_timeout_seconds)
        alive = work.handle is not None and self._executor.recover(work.handle)
        log.info("orphan_found", agent=run.agent, run_id=run.id, alive=alive)
        work.recorded = run.state
        self._announce(run, RunState.STOPPING if alive else run.state)
        if not alive:
            work.status = ExitStatus()

    def _start(self, run: Run, now: float) -> None:
        try:
            attempt = self._store.begin_attempt(run.id, secrets.token_hex(16))
        except IntegrityError:  # not one of the works, so none that can be read
            why = "another run of its agent is active and cannot be read, see row_unreadable in "
            self._fail(run, f"{why}the daemon's log")
            return
        if attempt is None:
            return  # cancelled or taken since the queue was read
        self._works[run.id] = work = ActiveAttempt.on(run, attempt, self.settings, now)
        self._announce(run, RunState.STARTING)
        precision = self._precision(work.run)
        spec = make_spec(self.settings, run, attempt, self._agents[run.agent], precision)
        try:
            spec.attempt_folder.mkdir(parents=True)
            work.handle = self._executor.submit(spec)
        except OSError as error:
            message = f"the worker could not be started: {error}"
            work.watch.summary = replace(work.watch.summary, error=message)
            work.status = ExitStatus()  # where the store fails now, the next round concludes
            self._conclude(work, Ending())
            return
        work.told = precision
        self._store.update_attempt(
            attempt.incarnation, pid=work.handle.pid, pid_started_at=work.handle.started_at
        )

    def _follow(self, work: ActiveAttempt, now: float) -> None:
        self._forward(work, now)
        if work.status is None and work.handle is not None:
            work.status = self._executor.poll(work.handle)
        if work.status is not None:
            offset = -1
            while offset != work.watch.offset:  # a read takes a bounded bite
                offset = work.watch.offset
                self._forward(work, now)
        elif work.cause is not None:
            if now >= work.kill_at and work.handle is not None:
                log.warning("worker_killed", agent=work.run.agent, run_id=work.run.id)
                self._executor.kill(work.handle)
                work.kill_at = math.inf
        elif (cause := work.watch.overdue(now)) is not None:
            self._stop(work, cause, now)
        else:
            self._tell_precision(work)

    def _forward(self, work: ActiveAttempt, now: float) -> None:
        events = work.watch.read(now)
        if work.watch.started and self._announced.get(work.run.id) is RunState.STARTING:
            self._announce(work.run, RunState.RUNNING)
        for event in events:
            self._listener.on_event(work.run.agent, work.run.id, event)

    def _record(self, work: ActiveAttempt, now: float, cancelled: bool) -> None:
        """Bring the store up to what was followed; a step that failed is taken again."""
        if work.broken:
            self._abandon(work)
            return
        if cancelled and work.cause is None and work.status is None:
            self._stop(work, StopCause.CANCEL, now)
        state = self._announced[work.run.id]
        if work.recorded is not state:
            self._store.move(work.run.id, state)
            work.recorded = state
        if work.status is not None:
            self._conclude(work, work.ending(work.status))
        elif now >= work.save_at:
            self._save(work)
            work.save_at = now + SAVE_INTERVAL_SECONDS

    def _save(self, work: ActiveAttempt) -> None:
        self._store.update_summary(work.run.id, work.watch.summary)
        columns: dict[str, float] = {"events_offset": work.watch.offset}
        if work.handle is not None:  # again: the store may have failed right after the start
            columns |= {"pid": work.handle.pid, "pid_started_at": work.handle.started_at}
        self._store.update_attempt(work.attempt.incarnation, **columns)

    def _tell_precision(self, work: ActiveAttempt) -> None:
        decided = self._precision(work.run)
        if decided != work.told and work.handle is not None:
            self._executor.send(work.handle, SetPrecision(state=decided))
            work.told = decided

    def _stop(self, work: ActiveAttempt, cause: StopCause, now: float) -> None:
        log.info("run_stopping", agent=work.run.agent, run_id=work.run.id, cause=cause.value)
        work.cause = cause
        work.kill_at = now + self.settings.stop_timeout_seconds
        self._announce(work.run, RunState.STOPPING)
        if work.handle is not None:
            self._executor.stop(work.handle, cause.value)

    def _conclude(self, work: ActiveAttempt, ending: Ending) -> None:
        """Write down how the attempt ended and what becomes of its run."""
        policy = RetryPolicy(
            max_attempts=self.settings.max_attempts,
            backoff_seconds=self.settings.retry_backoff_seconds,
        )
        verdict = decide(ending, failures=work.run.failures, policy=policy)
        summary = work.watch.summary
        folder = attempt_folder(self.settings.home, work.attempt)
        if verdict.failed and summary.error is None:
            disk = "" if ending.cause else "whether its disk has free space, and "
            summary = replace(summary, error=f"{ending}; see {disk}{folder / 'worker.log'}")
        self._store.update_summary(work.run.id, summary)
        self._store.update_attempt(work.attempt.incarnation, events_offset=work.watch.offset)
        ended_at = work.ended_at(folder, self._store.now())
        self._store.end_attempt(work.attempt, ending, verdict, finished_at=ended_at)
        del self._works[work.run.id]
        fields = {"agent": work.run.agent, "run_id": work.run.id}
        if work.watch.malformed:
            log.warning("events_malformed", **fields, lines=work.watch.malformed)
        if verdict.state is RunState.QUEUED:
            delay = verdict.delay_seconds
            log.info("run_requeued", **fields, ending=str(ending), delay_seconds=delay)
        self._announce(work.run, verdict.state)

    def _guarded(self, run: Run, step: Callable[..., None], *arguments: object) -> None:
        """Take a *step* for *run*; an error in it costs this run and no other."""
        try:
            step(*arguments)
        except SQLAlchemyError:  # the store's trouble is not this run's: the round is repeated
            raise
        except Exception as error:  # whatever it is, the loop and the other runs go on
            log.exception("run_handling_failed", agent=run.agent, run_id=run.id)
            message = f"the daemon failed to handle this run: {error!r}; see its log"
            if (work := self._works.get(run.id)) is None:
                self._fail(run, message)
                return
            work.broken = message  # recorded where a failing store may be tried again
            if work.handle is not None:
                self._executor.kill(work.handle)

    def _abandon(self, work: ActiveAttempt) -> None:
        """Write down that the run has failed for what `_guarded` caught."""
        run, verdict = work.run, Verdict(state=RunState.FAILED, failed=True)
        self._store.update_summary(run.id, replace(RunSummary.of(run), error=work.broken))
        self._store.end_attempt(work.attempt, Ending(), verdict, finished_at=self._store.now())
        del self._works[run.id]
        if work.handle is not None:
            self._dying.append(work.handle)
        self._announce(run, RunState.FAILED)

    def _fail(self, run: Run, error: str) -> None:
        self._store.move(run.id, RunState.FAILED, error=error)
        self._announce(run, RunState.FAILED)

    def _cancel(self, run: Run, reason: str | None) -> None:
        if self._store.move(run.id, RunState.CANCELLED, error=reason):
            self._announce(run, RunState.CANCELLED)

    def _announce(self, run: Run, state: RunState) -> None:
        if self._announced.get(run.id) is state:
            return
        self._announced[run.id] = state
        if state in TERMINAL:
            del self._announced[run.id]
        self._listener.on_run_state(run.agent, run.id, state)
