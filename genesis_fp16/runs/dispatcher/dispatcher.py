"""The dispatcher: one round after the other for all runs."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import structlog
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from genesis_fp16.domain.listener import EventListener
from genesis_fp16.domain.pause import PausesInForce, pauses_of
from genesis_fp16.domain.queue import in_turn
from genesis_fp16.domain.run import Ending, Run, RunState, StopCause
from genesis_fp16.executors import Executor, ExitStatus
from genesis_fp16.runs.active_attempt import ActiveAttempt
from genesis_fp16.runs.dispatcher import recording, waiting
from genesis_fp16.runs.dispatcher.adoption import take_over
from genesis_fp16.runs.dispatcher.announced import RunStates
from genesis_fp16.runs.dispatcher.reading import read_in_shares
from genesis_fp16.runs.dispatcher.under_way import UnderWay
from genesis_fp16.runs.quota import DailyQuotas
from genesis_fp16.runs.spec import make_spec
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from genesis_fp16.system.disk import find_disk_full
from infrastructure.events import PrecisionState, SetPrecision
from infrastructure.events.command import Stop
from infrastructure.events.event_log import NotAnEventFileError

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
        queued: Runs that wait, as of the last round, without those of paused agents and quotas.
        used_up: Agents whose quota of today is used up, to the end of the day in Unix seconds.
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
        self.used_up: Mapping[str, float] = {}
        self.clock = time.monotonic
        self._store = store
        self._executor = executor
        self._agents = agents
        self._precision = precision
        self._listener = listener
        self.absent: Callable[[str], str] = lambda _agent: ""
        self.pauses: PausesInForce = {}
        self._active = UnderWay()
        self._states = RunStates(store, listener)
        self._quotas = DailyQuotas(store)
        self._last_started: dict[str, float] | None = None  # read in the first round

    @property
    def busy(self) -> int:
        """Slots in use: one by each attempt under way."""
        return len(self._active)

    @property
    def alive(self) -> int:
        """Attempts whose workers have neither ended nor been given up, as of the last round."""
        return self._active.alive

    def recover(self, now: float) -> None:
        """Take over attempts of an earlier daemon; call it once, before the first round.

        A process that is still alive sees the end of its stdin and stops by itself; at the stop
        deadline it is killed. The attempt of one that is gone ends at once. A job goes on.
        """
        for run in self._store.unfinished():
            if run.active:
                self._isolated(run, self._adopt, run, now)

    def tick(self, now: float, *, only: str | None = None) -> None:
        """One round: follow the attempts under way, then start queued runs, in turn, in free slots.

        If *only* is not None, it is the id of the only run that may start.
        """
        unfinished = self.follow_and_record(now)
        free = self.settings.slots - self.busy
        queued = [run for run in unfinished if run.state is RunState.QUEUED]
        for run in self._in_turn(queued) if free > 0 else queued:
            if only not in (None, run.id):
                continue
            if run.cancel_requested:
                self._states.cancel(run, None)
            elif self.settings.for_agent(run.agent).enabled is False:
                self._states.cancel(run, f"the agent {run.agent} is disabled by its ENABLED=false")
            elif reason := self.absent(run.agent):
                self._states.cancel(run, reason)
            elif free > 0 and self._may_start(run):  # free first: it spares a long queue the rest
                free -= 1  # also if the start fails: one round tries no more than that
                self._isolated(run, self._start, run, now)

    def _in_turn(self, queued: list[Run]) -> list[Run]:
        if self._last_started is None:
            self._last_started = self._store.times.last_started()
        return in_turn(queued, self._priority, self._last_started)

    def _priority(self, agent: str) -> int:
        return self.settings.for_agent(agent).priority

    def follow_and_record(self, now: float) -> list[Run]:
        """Follow the attempts under way and record them, without starting a run.

        Returns:
            Unfinished runs as they were before, the longest due first.
        """
        self.follow(now)
        unfinished = self._store.unfinished_runs.read()
        agents = {run.agent for run in unfinished}
        self.used_up = self._quotas.used_up(self.settings, agents, now)
        self.queued = sum(
            run.state is RunState.QUEUED
            and not pauses_of(self.pauses, run.agent)
            and run.agent not in self.used_up
            for run in unfinished
        )
        for run in unfinished:
            if self._active.of_run(run.id) is None:
                self._states.announce(run, run.state)
                if run.active:  # its row could not be read before
                    self._isolated(run, self._adopt, run, now)
        cancelled = {run.id for run in unfinished if run.cancel_requested}
        for active in self._active:
            self._isolated(active.run, self._record, active, now, active.run.id in cancelled)
        return unfinished

    def follow(self, now: float) -> None:
        """Send precision, kill, pass on events, stop: what must not wait for the store.

        Passing on events takes `READ_SECONDS` and one more event at most.
        """
        self._active.poll_removed(self._executor)
        for active in self._active:
            if not active.daemon_error:
                self._isolated(active.run, self._control, active, now)
        for active in list(read_in_shares(self._active, self.clock, partial(self._read, now))):
            if not active.daemon_error:
                self._isolated(active.run, self._check_deadlines, active, now)

    def stop_all(self, now: float) -> None:
        """Ask every attempt to checkpoint and stop; `follow_and_record` until `busy` is 0."""
        for active in self._active:
            if active.stop_cause is None:
                self._stop(active, StopCause.SHUTDOWN, now)

    def kill_all(self) -> None:
        """Kill every worker at once."""
        for active in self._active:
            if active.handle is not None:
                self._executor.kill(active.handle)

    def _may_start(self, run: Run) -> bool:
        return (
            not pauses_of(self.pauses, run.agent)
            and run.agent not in self.used_up
            and run.is_available(self._store.now(), self.settings.retry_backoff_seconds)
            and run.agent in self._agents
            and all(active.run.agent != run.agent for active in self._active)
        )

    def _adopt(self, run: Run, now: float) -> None:
        """Follow a *run* that another daemon has begun."""
        open_ones = [
            attempt for attempt in self._store.attempts(run.id) if attempt.finished_at is None
        ]
        if not open_ones:
            self._states.fail(
                run, "its attempt cannot be read, see row_unreadable in the daemon's log"
            )
            return
        attempt = open_ones[-1]
        age = max(0.0, self._store.now() - attempt.started_at)
        active = ActiveAttempt.follow(
            run, attempt, self.settings, now, age_seconds=age, clock=self.clock
        )
        self._active.add(active)
        self._states.announce(run, take_over(active, self._executor, self.settings, now))

    def _start(self, run: Run, now: float) -> None:
        """Start the worker of the next attempt of *run*."""
        try:
            attempt = self._store.begin_attempt(run.id, secrets.token_hex(16))
        except IntegrityError:  # a run that we do not follow is active: its row is unreadable
            cause = "another run of its agent is active and cannot be read, see row_unreadable in "
            self._states.fail(run, f"{cause}the daemon's log")
            return
        if attempt is None:
            return  # cancelled or taken since the queue was read
        active = ActiveAttempt.follow(run, attempt, self.settings, now, clock=self.clock)
        self._active.add(active)
        if self._last_started is not None:
            self._last_started[run.agent] = attempt.started_at
        self._states.announce(run, RunState.STARTING)
        try:
            precision = self._precision(active.run_so_far)
        except SQLAlchemyError:  # the attempt ends without a worker, at no cost to the run
            active.mark_orphaned(now)
            active.end(ExitStatus())
            raise
        spec = make_spec(self.settings, run, attempt, self._agents[run.agent], precision)
        try:
            spec.attempt_folder.mkdir(parents=True)
            active.handle = self._executor.submit(spec)
        except OSError as error:
            message = f"the worker could not be started: {error}"
            active.progress.summary = replace(active.progress.summary, error=message)
            active.end(ExitStatus())  # if the store fails now, a later round ends it
            self._end(active, Ending(disk_full=find_disk_full(error) is not None))
            return
        active.sent_precision = precision
        recording.record_worker(active, self._store)

    def _control(self, active: ActiveAttempt, now: float) -> None:
        if active.exit_status is None and active.handle is not None:
            status = self._executor.poll(active.handle)
            if status is not None:
                active.end(status)
        if active.exit_status is not None:
            return
        waiting.note_engine(active, self._executor, now)
        if active.stop_cause is None:
            self._send_precision(active)
        elif now >= active.kill_at and active.handle is not None:
            if self._executor.kill(active.handle):
                log.warning("worker_killed", agent=active.run.agent, run_id=active.run.id)
            active.kill_at = math.inf

    def _read(self, now: float, active: ActiveAttempt, deadline: float) -> None:
        self._isolated(active.run, self._forward, active, now, deadline)

    def _forward(self, active: ActiveAttempt, now: float, deadline: float) -> None:
        skipped = active.progress.tail.skipped_bytes
        trouble: OSError | None = None
        try:
            for event in active.progress.read(now, deadline):
                self._announce_if_started(active)
                self._listener.on_event(active.run.agent, active.run.id, event)
        except NotAnEventFileError as error:
            self._abandon(active, f"its events cannot be read: {error}")
            return
        except OSError as error:
            trouble = error
        if trouble is None and active.handle is not None and active.exit_status is None:
            cause = self._executor.unreachable(active.handle)
            trouble = OSError(cause) if cause else None
        waiting.note_storage(active, trouble, now)
        self._announce_if_started(active)
        if active.progress.tail.skipped_bytes > skipped:
            active.sent_precision = None  # its acknowledgement may be lost: send it again

    def _check_deadlines(self, active: ActiveAttempt, now: float) -> None:
        alive = active.exit_status is None and active.stop_cause is None
        cause = active.progress.overdue(now) if alive or active.stuck else None
        if cause is not None and (alive or (cause is StopCause.RUN_TIMEOUT and not active.over)):
            self._stop(active, cause, now)

    def _announce_if_started(self, active: ActiveAttempt) -> None:
        if active.progress.started:
            self._states.announce_started(active.run)

    def _record(self, active: ActiveAttempt, now: float, cancelled: bool) -> None:
        """Bring the store up to date; after an error the next round repeats the failed step."""
        if active.daemon_error:
            self._give_up(active)
            return
        alive = active.exit_status is None and active.stop_cause is None
        if cancelled and (alive or (active.stuck and not active.over)):
            self._stop(active, StopCause.CANCEL, now)
        elif alive and any(pause.stops_runs for pause in pauses_of(self.pauses, active.run.agent)):
            self._stop(active, StopCause.PAUSE, now)
        elif alive and active.run.agent in self.used_up:
            self._stop(active, StopCause.QUOTA, now)
        state = self._states.of(active.run)
        if state is not None and active.recorded_state is not state:
            self._store.move(active.run.id, state)
            active.recorded_state = state
        if active.exit_status is not None and active.over:
            self._end(active, active.ending(active.exit_status))
        else:
            recording.save_if_due(active, self._store, now)

    def _send_precision(self, active: ActiveAttempt) -> None:
        state = self._precision(active.run_so_far)
        if state.reason == "device_unknown":
            return  # a job that an earlier daemon has started keeps the precision that it was given
        if state != active.sent_precision and active.handle is not None:
            self._executor.send(active.handle, SetPrecision(state=state))
            active.sent_precision = state

    def _stop(self, active: ActiveAttempt, cause: StopCause, now: float) -> None:
        log.info("stop_requested", agent=active.run.agent, run_id=active.run.id, cause=cause.value)
        active.stop_cause = cause
        active.kill_at = now + self.settings.stop_timeout_seconds
        self._states.announce(active.run, RunState.STOPPING)
        if active.handle is not None:
            self._executor.send(active.handle, Stop(reason=cause.value))

    def _end(self, active: ActiveAttempt, ending: Ending) -> None:
        transition = recording.record_end(active, ending, self._store, self.settings)
        self._active.remove(active)
        self._states.announce(active.run, transition.state)

    def _isolated(self, run: Run, step: Callable[..., None], *arguments: object) -> None:
        """Take a *step* for *run*; an error in it fails this run and no other."""
        try:
            step(*arguments)
        except SQLAlchemyError:  # a failing store is not this run's fault: the round is repeated
            raise
        except Exception as error:  # of any kind: the loop and the other runs go on
            log.exception("run_handling_failed", agent=run.agent, run_id=run.id)
            message = f"the daemon failed to handle this run: {error!r}; see its log"
            if (active := self._active.of_run(run.id)) is None:
                self._states.fail(run, message)
            else:
                self._abandon(active, message)

    def _abandon(self, active: ActiveAttempt, error: str) -> None:
        """End the attempt and follow it no longer; the run fails with *error*."""
        active.daemon_error = error  # recorded later, where a failing store is tried again
        if active.handle is not None:
            self._executor.kill(active.handle)

    def _give_up(self, active: ActiveAttempt) -> None:
        recording.record_daemon_error(active, self._store)
        self._active.remove(active)
        self._states.announce(active.run, RunState.FAILED)
