"""The dispatcher: starts queued runs in free slots, follows their attempts and ends them."""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import structlog
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from genesis_fp16.domain.attempt import attempt_folder
from genesis_fp16.domain.listener import EventListener
from genesis_fp16.domain.pause import PausesInForce, pauses_of
from genesis_fp16.domain.run import (
    TERMINAL,
    Ending,
    RetryPolicy,
    Run,
    RunState,
    RunSummary,
    RunTransition,
    StopCause,
    resolve_ending,
)
from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.executors import Executor, ExitStatus, Handle
from genesis_fp16.runs.active_attempt import ActiveAttempt
from genesis_fp16.runs.fleets import MOST_DUE, share_workers
from genesis_fp16.runs.spec import make_spec
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from genesis_fp16.system.disk import find_disk_full
from infrastructure.events import PrecisionState, SetPrecision
from infrastructure.events.command import Stop

SAVE_INTERVAL_SECONDS = 1.0
SAVE_BYTES = 1 << 16  # of events read, after which progress is saved at once
READ_SECONDS = 0.1  # for the events of all attempts; a round of the daemon's loop reads twice

log = structlog.get_logger()


class Dispatcher:
    """Owns every attempt from its start to the next state of its run.

    The time *now* of a round is in monotonic seconds.

    Args:
        agents: Name to entry point of the agents that may run.
        precision: Resolves the precision of a run; called in every round.
        listener: Receives events and states; it must not raise an error.

    Attributes:
        settings: Settings in force; assign it after a reload.
        absent: Returns why no run of an agent can ever start, for example because it is not
            installed; empty if it may. Its waiting runs are cancelled with that reason.
        pauses: Pauses in force; the waiting runs of a paused agent go on waiting.
        queued: Runs that wait, as of the last round, without those of paused agents.
        clock: Monotonic seconds, for the time that reading events takes.
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
        self.clock = time.monotonic
        self._store = store
        self._executor = executor
        self._agents = agents
        self._precision = precision
        self._listener = listener
        self.absent: Callable[[str], str] = lambda _agent: ""
        self.pauses: PausesInForce = {}
        self._active: dict[str, ActiveAttempt] = {}
        self._announced: dict[str, RunState] = {}
        self._left: list[Handle] = []  # of attempts followed no longer, until the worker has ended

    @property
    def under_way(self) -> int:
        """Attempts under way."""
        return len(self._active)

    @property
    def busy(self) -> int:
        """Slots in use, one by each worker, however many attempts it hosts."""
        handles = [active.handle for active in self._active.values()]
        workers = {handle.process for handle in handles if handle is not None}
        return len(workers) + handles.count(None)

    @property
    def alive(self) -> int:
        """Attempts whose workers have neither ended nor been given up, as of the last round."""
        return sum(
            not (each.daemon_error or each.exit_status or each.handle is None)
            for each in self._active.values()
        )

    def recover(self, now: float) -> None:
        """Take over attempts of an earlier daemon; call it once, before the first round.

        A process that is still alive sees the end of its stdin and stops by itself; at the stop
        deadline it is killed. The attempt of one that is gone ends at once. A job goes on.
        """
        for run in self._store.unfinished():
            if run.active:
                self._isolated(run, self._adopt, run, now)

    def tick(self, now: float, *, only: str | None = None) -> None:
        """One round: follow the attempts under way, then start runs that are due in free slots.

        If *only* is not None, it is the id of the only run that may start.
        """
        due: list[Run] = []
        unfinished = self.follow_and_record(now)
        free = self.settings.slots - self.busy
        for run in unfinished:
            if run.state is not RunState.QUEUED or only not in (None, run.id):
                continue
            if run.cancel_requested:
                self._cancel(run, None)
            elif self.settings.for_agent(run.agent).enabled is False:
                self._cancel(run, f"the agent {run.agent} is disabled by its ENABLED=false")
            elif reason := self.absent(run.agent):
                self._cancel(run, reason)
            elif free > 0 and self._may_start(run, due):  # first: a long queue is spared the rest
                due.append(run)
        alone = [[run] for run in due]
        hosts_fleets = self._executor.hosts_fleets
        shared = share_workers(due, free, self.settings) if hosts_fleets else alone
        for runs in shared[:free]:
            self._start(runs, now)

    def follow_and_record(self, now: float) -> list[Run]:
        """Follow the attempts under way and record them, without starting a run.

        Returns:
            Unfinished runs as they were before, the longest due first.
        """
        self.follow(now)
        unfinished = self._store.unfinished_runs.read()
        self.queued = sum(
            run.state is RunState.QUEUED and not pauses_of(self.pauses, run.agent)
            for run in unfinished
        )
        for run in unfinished:
            if run.id not in self._active:
                self._announce(run, run.state)
                if run.active:  # its row could not be read before
                    self._isolated(run, self._adopt, run, now)
        cancelled = {run.id for run in unfinished if run.cancel_requested}
        for run_id, active in list(self._active.items()):
            self._isolated(active.run, self._record, active, now, run_id in cancelled)
        return unfinished

    def follow(self, now: float) -> None:
        """Send precision, kill, pass on events, stop: what must not wait for the store.

        Passing on events takes `READ_SECONDS` and one more event at most.
        """
        self._left = [worker for worker in self._left if self._executor.poll(worker) is None]
        for active in list(self._active.values()):
            if not active.daemon_error:
                self._isolated(active.run, self._control, active, now)
        for active in list(self._read(now)):
            if not active.daemon_error:
                self._isolated(active.run, self._check_deadlines, active, now)

    def stop_all(self, now: float) -> None:
        """Ask every attempt to checkpoint and stop; `follow_and_record` until `busy` is 0."""
        for active in self._active.values():
            if active.stop_cause is None:
                self._stop(active, StopCause.SHUTDOWN, now)

    def kill_all(self) -> None:
        """Kill every worker at once."""
        for active in self._active.values():
            if active.handle is not None:
                self._executor.kill(active.handle)

    def _may_start(self, run: Run, due: list[Run]) -> bool:
        """Whether *run* may start in this round, in which those in *due* start before it."""
        return (
            len(due) < MOST_DUE
            and not pauses_of(self.pauses, run.agent)
            and run.is_available(self._store.now(), self.settings.retry_backoff_seconds)
            and run.agent in self._agents
            and all(each.agent != run.agent for each in due)
            and all(active.run.agent != run.agent for active in self._active.values())
        )

    def _adopt(self, run: Run, now: float) -> None:
        """Follow a *run* that another daemon has begun."""
        open_ones = [each for each in self._store.attempts(run.id) if each.finished_at is None]
        if not open_ones:
            self._fail(run, "its attempt cannot be read, see row_unreadable in the daemon's log")
            return
        attempt, clock = open_ones[-1], self.clock
        age = max(0.0, self._store.now() - attempt.started_at)
        active = ActiveAttempt.follow(
            run, attempt, self.settings, now, age_seconds=age, clock=clock
        )
        self._active[run.id] = active
        job = self._executor.find(attempt_folder(self.settings.home, attempt))
        if job is not None and self._executor.recover(job):
            active.adopt(job)
            active.recorded_state = run.state
            self._announce(run, run.state)
            log.info("job_adopted", agent=run.agent, run_id=run.id, job=job.job)
            return
        active.mark_orphaned(now + self.settings.stop_timeout_seconds)
        alive = active.handle is not None and self._executor.recover(active.handle)
        log.info("orphan_found", agent=run.agent, run_id=run.id, alive=alive)
        active.recorded_state = run.state
        self._announce(run, RunState.STOPPING if alive else run.state)
        if not alive:
            active.end(ExitStatus())

    def _start(self, runs: list[Run], now: float) -> None:
        """Start one worker for the next attempts of *runs*."""
        begun: list[tuple[ActiveAttempt, RunSpec]] = []
        try:
            for run in runs:
                self._isolated(run, self._begin, run, now, begun)
        finally:  # also if the store fails now: their attempts have begun
            if begun:
                self._launch(begun)

    def _begin(self, run: Run, now: float, begun: list[tuple[ActiveAttempt, RunSpec]]) -> None:
        try:
            attempt = self._store.begin_attempt(run.id, secrets.token_hex(16))
        except IntegrityError:  # a run that we do not follow is active: its row is unreadable
            cause = "another run of its agent is active and cannot be read, see row_unreadable in "
            self._fail(run, f"{cause}the daemon's log")
            return
        if attempt is None:
            return  # cancelled or taken since the queue was read
        active = ActiveAttempt.follow(run, attempt, self.settings, now, clock=self.clock)
        self._active[run.id] = active
        self._announce(run, RunState.STARTING)
        try:
            precision = self._precision(active.run_so_far)
        except SQLAlchemyError:  # the attempt ends without a worker, at no cost to the run
            active.mark_orphaned(now)
            active.end(ExitStatus())
            raise
        spec = make_spec(self.settings, run, attempt, self._agents[run.agent], precision)
        begun.append((active, spec))

    def _launch(self, begun: list[tuple[ActiveAttempt, RunSpec]]) -> None:
        specs = [spec for _, spec in begun]
        try:
            for spec in specs:
                spec.attempt_folder.mkdir(parents=True)
            handles = self._submit(specs)
        except OSError as error:
            message = f"the worker could not be started: {error}"
            full = find_disk_full(error) is not None
            ending = Ending(disk_full=full, shared=len(begun) > 1)
            for active, _ in begun:
                active.progress.summary = replace(active.progress.summary, error=message)
                active.end(ExitStatus())  # if the store fails now, a later round ends it
            for active, _ in begun:
                self._isolated(active.run, self._end, active, ending)
            return
        except Exception as error:  # of any kind: the loop and the other runs go on
            log.exception("worker_not_started", agents=", ".join(spec.agent for spec in specs))
            for active, _ in begun:
                self._abandon(active, f"its worker could not be started: {error!r}; see the log")
            return
        for (active, spec), handle in zip(begun, handles, strict=True):
            active.handle, active.sent_precision = handle, spec.precision
        for active, _ in begun:
            self._isolated(active.run, self._record_worker, active)

    def _submit(self, specs: list[RunSpec]) -> list[Handle]:
        if len(specs) == 1:
            return [self._executor.submit(specs[0])]
        agents = ", ".join(spec.agent for spec in specs)
        log.info("fleet_started", agents=agents, attempts=len(specs))
        return self._executor.submit_fleet(specs)

    def _record_worker(self, active: ActiveAttempt) -> None:
        if active.handle is not None:
            self._store.update_attempt(active.attempt.incarnation, **active.worker_columns)

    def _control(self, active: ActiveAttempt, now: float) -> None:
        if active.exit_status is None and active.handle is not None:
            status = self._executor.poll(active.handle)
            if status is not None:
                active.end(status)
            elif active.hosted and active.progress.outcome is not None and self._beside(active):
                active.end(ExitStatus())  # its worker goes on with the others
        if active.exit_status is not None:
            return
        self._note_wait(active, now)
        if active.stop_cause is None:
            self._send_precision(active)
        elif now >= active.kill_at and active.handle is not None:
            log.warning("worker_killed", agent=active.run.agent, run_id=active.run.id)
            self._executor.kill(active.handle)
            active.kill_at = math.inf

    def _note_wait(self, active: ActiveAttempt, now: float) -> None:
        """Take note of whether the attempt's job waits, and for what."""
        if active.handle is None or active.progress.started:
            return
        before, reason = active.waiting, self._executor.waiting(active.handle)
        active.wait(reason, max(0.0, now - active.asked_at), now)
        active.asked_at = now
        if reason != before:
            active.save_at = now
            run = active.run
            log.info(
                "job_waits" if reason else "job_starts",
                agent=run.agent,
                run_id=run.id,
                reason=reason,
            )

    def _beside(self, active: ActiveAttempt) -> list[ActiveAttempt]:
        """Other attempts under way in the same worker."""
        return [
            each
            for each in self._active.values()
            if each is not active
            and each.handle is not None
            and active.handle is not None
            and each.handle.process == active.handle.process
            and not (each.exit_status or each.daemon_error)
        ]

    def _read(self, now: float) -> Iterator[ActiveAttempt]:
        """Read events in equal shares of `READ_SECONDS`; what one does not need is for the others.

        Yields each attempt whose turn came, the one that waited longest first.
        """
        waiting = deque(sorted(self._active.values(), key=lambda each: each.read_at))
        end = self.clock() + READ_SECONDS
        while waiting and (began := self.clock()) < end:
            active = waiting.popleft()
            if active.daemon_error:
                continue
            share = (end - began) / (len(waiting) + 1)
            active.read_at = began
            self._isolated(active.run, self._forward, active, now, began + share)
            if active.progress.tail.behind and not active.daemon_error:
                waiting.append(active)
            yield active

    def _forward(self, active: ActiveAttempt, now: float, deadline: float) -> None:
        skipped = active.progress.tail.skipped_bytes
        try:
            for event in active.progress.read(now, deadline):
                self._announce_if_started(active)
                self._listener.on_event(active.run.agent, active.run.id, event)
        except OSError as error:
            log.error(
                "events_unreadable",
                agent=active.run.agent,
                run_id=active.run.id,
                error=str(error),
                consequence="the run fails",
            )
            self._abandon(active, f"its events cannot be read: {error}")
            return
        self._announce_if_started(active)
        if active.progress.tail.skipped_bytes > skipped:
            active.sent_precision = None  # its acknowledgement may be lost: send it again

    def _check_deadlines(self, active: ActiveAttempt, now: float) -> None:
        if active.exit_status is None and active.stop_cause is None:
            cause = active.progress.overdue(now)
            if cause is not None:
                self._stop(active, cause, now)

    def _announce_if_started(self, active: ActiveAttempt) -> None:
        starting = self._announced.get(active.run.id) is RunState.STARTING
        if starting and active.progress.started:
            self._announce(active.run, RunState.RUNNING)

    def _record(self, active: ActiveAttempt, now: float, cancelled: bool) -> None:
        """Bring the store up to date; after an error the next round repeats the failed step."""
        if active.daemon_error:
            self._give_up(active)
            return
        if active.stop_cause is None and active.exit_status is None:
            if cancelled:
                self._stop(active, StopCause.CANCEL, now)
            elif any(pause.stops_runs for pause in pauses_of(self.pauses, active.run.agent)):
                self._stop(active, StopCause.PAUSE, now)
        state = self._announced[active.run.id]
        if active.recorded_state is not state:
            self._store.move(active.run.id, state)
            active.recorded_state = state
        if active.exit_status is not None and active.over:
            self._end(active, active.ending(active.exit_status))
        elif now >= active.save_at or active.unsaved_bytes >= SAVE_BYTES:
            self._save(active, active.progress.summary)
            active.save_at = now + SAVE_INTERVAL_SECONDS

    def _save(self, active: ActiveAttempt, summary: RunSummary) -> None:
        """Save *summary* together with how far the events were read: none counts twice."""
        offset = active.progress.tail.offset
        columns: dict[str, float | str | None] = {"events_offset": offset}
        columns["ending"] = active.progress.outcome
        columns |= active.worker_columns  # again: the store may have failed right after the start
        self._store.save_progress(active.attempt, summary, **columns)
        active.saved_offset = offset

    def _send_precision(self, active: ActiveAttempt) -> None:
        state = self._precision(active.run_so_far)
        if state != active.sent_precision and active.handle is not None:
            self._executor.send(active.handle, SetPrecision(state=state))
            active.sent_precision = state

    def _stop(self, active: ActiveAttempt, cause: StopCause, now: float) -> None:
        log.info("stop_requested", agent=active.run.agent, run_id=active.run.id, cause=cause.value)
        active.stop_cause = cause
        active.kill_at = now + self.settings.stop_timeout_seconds
        self._announce(active.run, RunState.STOPPING)
        if active.handle is not None:
            self._executor.send(active.handle, Stop(reason=cause.value))

    def _end(self, active: ActiveAttempt, ending: Ending) -> None:
        """Record how the attempt ended, and the next state of its run."""
        policy = RetryPolicy(
            max_attempts=self.settings.max_attempts,
            backoff_seconds=self.settings.retry_backoff_seconds,
        )
        transition = resolve_ending(
            ending,
            failures=active.run.failures,
            policy=policy,
            attempts=active.attempt.number,
        )
        summary = active.progress.summary
        home = self.settings.home
        if transition.failed and summary.error is None and active.exit_status is not None:
            summary = replace(summary, error=active.exit_status.error or None)
        if transition.failed and summary.error is None:
            disk = "" if ending.cause else "whether its disk has free space, and "
            worker_log = attempt_folder(home, active.attempt) / "worker.log"
            summary = replace(summary, error=f"{ending}; see {disk}{worker_log}")
        self._save(active, summary)
        ended_at = active.ended_at(home, self._store.now())
        self._store.end_attempt(active.attempt, ending, transition, finished_at=ended_at)
        self._leave(active)
        _log_refused_events(active)
        if transition.state is RunState.QUEUED:
            log.info(
                "run_requeued",
                agent=active.run.agent,
                run_id=active.run.id,
                ending=str(ending),
                delay_seconds=transition.delay_seconds,
            )
        self._announce(active.run, transition.state)

    def _isolated(self, run: Run, step: Callable[..., None], *arguments: object) -> None:
        """Take a *step* for *run*; an error in it fails this run and no other."""
        try:
            step(*arguments)
        except SQLAlchemyError:  # a failing store is not this run's fault: the round is repeated
            raise
        except Exception as error:  # of any kind: the loop and the other runs go on
            log.exception("run_handling_failed", agent=run.agent, run_id=run.id)
            message = f"the daemon failed to handle this run: {error!r}; see its log"
            if (active := self._active.get(run.id)) is None:
                self._fail(run, message)
            else:
                self._abandon(active, message)

    def _abandon(self, active: ActiveAttempt, error: str) -> None:
        """End the attempt and follow it no longer; the run fails with *error*."""
        active.daemon_error = error  # recorded later, where a failing store is tried again
        if active.handle is None:
            return
        if self._beside(active):
            self._executor.send(active.handle, Stop(reason=error))
        else:
            self._executor.kill(active.handle)

    def _leave(self, active: ActiveAttempt) -> None:
        del self._active[active.run.id]
        if active.handle is not None:
            self._left.append(active.handle)

    def _give_up(self, active: ActiveAttempt) -> None:
        """Record that the run has failed by `daemon_error`."""
        run, transition = active.run, RunTransition(state=RunState.FAILED, failed=True)
        self._store.update_summary(run.id, replace(RunSummary.of(run), error=active.daemon_error))
        self._store.end_attempt(active.attempt, Ending(), transition, finished_at=self._store.now())
        self._leave(active)
        _log_refused_events(active)
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


def _log_refused_events(active: ActiveAttempt) -> None:
    """Log how many events of an attempt that has ended were not accepted."""
    if problems := active.progress.problems:
        log.warning("events_refused", agent=active.run.agent, run_id=active.run.id, **problems)
