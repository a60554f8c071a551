"""One run of one agent in the foreground: in this process, or by the daemon of this home."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing

import structlog

from genesis_fp16.daemon.known_agents import known_agents, watching_daemon
from genesis_fp16.daemon.log import configure_logging, log_ignored_settings
from genesis_fp16.daemon.operator import AgentNotReadyError
from genesis_fp16.daemon.run_log import RunLogger, open_run_logger
from genesis_fp16.daemon.run_loop import TICK_SECONDS, RunLoop, StoreHealth, open_store
from genesis_fp16.daemon.standby import wait_for_workers
from genesis_fp16.daemon.startup import StoppedEarlyError, probe_environment
from genesis_fp16.domain.attempt import events_path
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.event_limits import EventLimits
from genesis_fp16.domain.run import Run, RunState
from genesis_fp16.plugins.discovery import check_not_shadowed, entry_point_of
from genesis_fp16.plugins.probe import Plugin
from genesis_fp16.runs.dispatcher import READ_SECONDS
from genesis_fp16.settings import Settings
from genesis_fp16.store import DaemonLock, LockHeldError, Store
from genesis_fp16.store.daemon_status import find_daemon
from genesis_fp16.store.errors import user_name
from genesis_fp16.store.home import refuse_foreign_folder
from genesis_fp16.system.permissions import close_to_others, private_umask
from genesis_fp16.system.signals import Signals
from infrastructure.events import Event, EventTail

CHECK_DAEMON_SECONDS = 2.0
_RUNS_SHOWN = 5

log = structlog.get_logger()


class DaemonGoneError(GenesisError, RuntimeError):
    """The daemon ended while its run was being followed."""

    exit_code = os.EX_UNAVAILABLE


def run_once(settings: Settings, agent: str, *, actor: str | None = None) -> int:
    """Run *agent* once and log the progress; a run of it that waits in the queue is taken.

    If a daemon serves this home, the run is queued there and followed. The audit trail names
    *actor*, by default the account of this process.

    Returns:
        0 if it succeeded, 78 if no retry can help, 75 if it was stopped and can be resumed,
        otherwise 1.

    Raises:
        UnknownAgentError: *agent* is not installed.
        AgentNotReadyError: *agent* cannot run, or was quarantined while its run waited.
        AgentPausedError: *agent* is paused; if that came later, its run waits in the queue.
        GenesisError: Nothing can run here; its exit code depends on the cause.
    """
    configure_logging(settings)
    log_ignored_settings(settings)
    check_not_shadowed()
    home = settings.home.absolute()
    refuse_foreign_folder(home)
    entry_point_of(agent, home)
    with ExitStack() as stack:
        signals = stack.enter_context(Signals())
        stack.enter_context(private_umask(home))
        probes = None
        if watching_daemon(settings) is not None:
            _check_ready(known_agents(settings, only=agent))
        else:
            try:
                probes = probe_environment(settings, agent, signals)
            except StoppedEarlyError:
                return os.EX_TEMPFAIL
            _check_ready(probes.plugins)
        store = stack.enter_context(closing(open_store(settings)))
        store.pauses.check(agent)
        run_logger = stack.enter_context(closing(open_run_logger(store)))
        lock = DaemonLock(settings)
        try:
            stack.enter_context(lock)
        except LockHeldError as error:
            log.info("run_handed_over", daemon=error.holder)
            reason = "run in the foreground, by the daemon"
            run = store.enqueue(
                agent,
                first_seed=settings.seed,
                actor=actor or user_name(os.geteuid()),
                reason=reason,
            )
            _follow(settings, store, run, run_logger, signals)
        else:
            if probes is None:
                raise DaemonGoneError("the daemon has just ended: repeat the command")
            close_to_others(home)
            loop = RunLoop(settings, store, probes, [run_logger])
            if not wait_for_workers(lock, signals):
                return os.EX_TEMPFAIL
            lock.begin(loop.executor.extend_lease)
            run = _run_here(loop, store, agent, signals, lock)
        with StoreHealth().catch_errors():
            return _exit_code(store, run.id)
    return os.EX_TEMPFAIL


def _check_ready(plugins: Iterable[Plugin]) -> None:
    """Refuse an agent that cannot run; report one that a daemon may soon be able to run."""
    for plugin in plugins:
        if plugin.state == "pending":
            log.warning(
                "agent_pending",
                agent=plugin.name,
                reason=plugin.reason,
                effect="the run waits until the daemon has probed the agent",
                look_at="genesis-fp16 agents",
            )
        elif plugin.state != "ready":
            raise AgentNotReadyError(f"agent {plugin.name!r} is {plugin.state}: {plugin.reason}")


def _run_here(loop: RunLoop, store: Store, agent: str, signals: Signals, lock: DaemonLock) -> Run:
    """Run *agent* in this process, which holds the *lock* as a daemon would."""
    loop.dispatcher.recover(time.monotonic())
    waiting = store.unfinished(agent)
    run = waiting[0] if waiting else store.enqueue(agent, first_seed=loop.settings.seed)
    finished = False
    try:
        while not signals.stop_count and not finished:
            lock.verify()
            now = time.monotonic()
            loop.begin_round(now)
            with loop.store_health.catch_errors():
                loop.dispatch(now, only=run.id)
                current = store.run(run.id)
                finished = current is not None and current.finished
                if current is not None and not current.active:
                    store.pauses.check(agent)
            lock.write_status(
                loop.settings, trouble=loop.store_health.problem, refused=loop.settings_error
            )
            time.sleep(TICK_SECONDS)
    finally:
        loop.drain(signals)
    return run


def _follow(
    settings: Settings, store: Store, run: Run, run_logger: RunLogger, signals: Signals
) -> None:
    """Log the progress of *run* until it ends; a signal ends the log, not the run.

    Raises:
        AgentNotReadyError: The agent was quarantined while the run waited, which it still does.
        AgentPausedError: The agent was paused while the run waited, which it still does.
        DaemonGoneError: The daemon has ended.
    """
    followed: dict[int, tuple[EventTail, EventLimits]] = {}
    state, check_at, waits = None, 0.0, False
    while not signals.stop_count:
        now = time.monotonic()
        if now >= check_at:
            check_at = now + CHECK_DAEMON_SECONDS
            _check_daemon(settings, run)
            if state is RunState.QUEUED:
                _check_waiting(settings, store, run, already=waits)
                store.pauses.check(run.agent)
            waits = state is RunState.QUEUED
        current = store.run(run.id) or run  # before the events: all precede the last state
        behind = False
        for attempt in store.attempts(run.id):
            path = events_path(settings.home, attempt)
            progress = followed.setdefault(attempt.number, (EventTail(path), EventLimits()))
            age = store.now() - attempt.started_at
            for event in _admitted(*progress, age):
                run_logger.on_event(run.agent, run.id, event)
            behind |= progress[0].behind
        if behind:
            continue  # the state comes after the events
        if current.state is not state:
            state = current.state
            run_logger.on_run_state(run.agent, run.id, state)
        if current.finished:
            return
        time.sleep(TICK_SECONDS)
    log.info(
        "run_left_to_daemon",
        run_id=run.id,
        remedy=f"genesis-fp16 runs show {run.id} shows how it ends",
    )


def _admitted(tail: EventTail, limits: EventLimits, age_seconds: float) -> Iterator[Event]:
    """New events within the limits, read for `READ_SECONDS`: the caller obeys signals."""
    for received in tail.read(time.monotonic() + READ_SECONDS):
        if (event := limits.admit(received, age_seconds)) is not None:
            yield event


def _check_waiting(settings: Settings, store: Store, run: Run, *, already: bool) -> None:
    """Log once that *run* waits, and refuse to follow it if its agent is quarantined."""
    if not already:
        fields = {"agent": run.agent, "run_id": run.id, "reason": _busy_slots(settings, store)}
        look_at = "genesis-fp16 agents, genesis-fp16 runs"
        log.info("run_waiting", **{k: v for k, v in fields.items() if v}, look_at=look_at)
    for plugin in known_agents(settings, only=run.agent):
        if plugin.state == "quarantined":
            raise AgentNotReadyError(
                f"agent {run.agent!r} is quarantined: {plugin.reason}; run {run.id} waits in the "
                "queue and starts once the agent is mended"
            )


def _busy_slots(settings: Settings, store: Store) -> str:
    """Which runs have the daemon's slots; empty if one is free."""
    daemon = find_daemon(settings.home.absolute())
    followed = daemon.settings_in_force(settings) if daemon is not None else None
    slots = (followed or settings).slots
    busy = [f"{run.agent}#{run.number}" for run in store.unfinished() if run.active]
    if len(busy) < slots:
        return ""
    shown = ", ".join(busy[:_RUNS_SHOWN]) + (", ..." if len(busy) > _RUNS_SHOWN else "")
    which = "the only slot is" if slots == 1 else f"all {slots} slots are"
    return f"{which} busy (GENESIS_SLOTS): {shown}"


def _check_daemon(settings: Settings, run: Run) -> None:
    try:
        with DaemonLock(settings):
            raise DaemonGoneError(
                f"the daemon has stopped; run {run.id} continues when it starts again: "
                "genesis-fp16 serve, or genesis-fp16 run"
            )
    except LockHeldError:
        pass


def _exit_code(store: Store, run_id: str) -> int:
    run, attempts = store.run(run_id), store.attempts(run_id)
    if run is None or not run.finished:
        return os.EX_TEMPFAIL
    if run.state is RunState.SUCCEEDED:
        return 0
    if run.state is RunState.NO_DATA:
        return os.EX_NOINPUT
    misconfigured = bool(attempts) and attempts[-1].exit_code == os.EX_CONFIG
    return os.EX_CONFIG if misconfigured else 1
