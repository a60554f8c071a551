"""One run of one agent in the foreground: here, or by the daemon that serves this home."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, closing
from typing import NamedTuple

import structlog
from rich.console import Console

from genesis_fp16.daemon.daemon import TICK_SECONDS, open_store
from genesis_fp16.daemon.draining import drain
from genesis_fp16.daemon.listeners import Listeners
from genesis_fp16.daemon.log import configure_logging
from genesis_fp16.daemon.precision_resolver import PrecisionDesk
from genesis_fp16.daemon.run_log import Narrator
from genesis_fp16.daemon.startup import Findings, StoppedEarlyError, look_around
from genesis_fp16.daemon.store_trouble import StoreTrouble
from genesis_fp16.domain.attempt import attempt_folder
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.run import Run, RunState
from genesis_fp16.executors import LocalExecutor
from genesis_fp16.guard import Fallbacks, Guard
from genesis_fp16.plugins.discovery import UnknownAgentError, check_not_shadowed
from genesis_fp16.runs.dispatcher import Dispatcher
from genesis_fp16.settings import Settings
from genesis_fp16.settings.reload import SettingsReloader
from genesis_fp16.store import DaemonLock, LockHeldError, Store
from genesis_fp16.system.signals import Signals
from infrastructure.events import EventTail

LOOK_FOR_DAEMON_SECONDS = 2.0

log = structlog.get_logger()


class AgentNotReadyError(GenesisError, LookupError):
    """The agent is quarantined or disabled."""

    exit_code = os.EX_CONFIG


class DaemonGoneError(GenesisError, RuntimeError):
    """The daemon ended while its run was being followed."""

    exit_code = os.EX_UNAVAILABLE

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"the daemon has stopped; run {run_id} goes on when it starts again: "
            "genesis-fp16 serve, or genesis-fp16 run"
        )


class _Life(NamedTuple):
    """What ends a run here before its time."""

    signals: Signals
    lock: DaemonLock


def run_once(settings: Settings, agent: str) -> int:
    """Run *agent* once and tell how it goes. A run of it that waits already is taken.

    Where a daemon serves this home, the run is queued there and followed.

    Returns:
        0 if it succeeded, 78 if no retry can help, 75 if it was stopped and can be resumed,
        else 1.

    Raises:
        UnknownAgentError: No such agent is installed.
        AgentNotReadyError: It cannot run.
        GenesisError: It cannot be run here; see its exit code.
    """
    configure_logging(settings)
    check_not_shadowed()
    with ExitStack() as stack:
        signals = stack.enter_context(Signals())
        try:
            findings = look_around(settings, signals)
        except StoppedEarlyError:
            return os.EX_TEMPFAIL
        _check_ready(findings, agent)
        store = stack.enter_context(closing(open_store(settings)))
        console, runs = Console(stderr=True, soft_wrap=True), settings.home.absolute() / "runs"
        narrator = stack.enter_context(closing(Narrator(console, runs=runs)))
        lock = DaemonLock(settings)
        try:
            stack.enter_context(lock)
        except LockHeldError as error:
            log.info("run_is_for_the_daemon", daemon=error.holder)
            run = store.enqueue(agent, first_seed=settings.seed)
            _follow(settings, store, run, narrator, signals)
        else:
            run = _run_here(settings, store, agent, findings, narrator, _Life(signals, lock))
        with StoreTrouble().tolerated():
            return _exit_code(store, run.id)
    return os.EX_TEMPFAIL


def _check_ready(findings: Findings, agent: str) -> None:
    found = {plugin.name: plugin for plugin in findings.plugins}
    if agent not in found:
        raise UnknownAgentError(agent, found)
    plugin = found[agent]
    if plugin.state != "ready":
        raise AgentNotReadyError(f"agent {agent!r} is {plugin.state}: {plugin.reason}")


def _run_here(
    settings: Settings,
    store: Store,
    agent: str,
    findings: Findings,
    narrator: Narrator,
    life: _Life,
) -> Run:
    guard, fallbacks = Guard(store, settings), Fallbacks(store, settings.home)
    desk = PrecisionDesk(store, findings.hardware, settings, guard, fallbacks)
    listeners = Listeners([guard, fallbacks, narrator])
    dispatcher = Dispatcher(
        store, LocalExecutor(), settings, findings.entry_points, desk, listeners
    )
    dispatcher.recover(time.monotonic())
    waiting = store.unfinished(agent)
    run = waiting[0] if waiting else store.enqueue(agent, first_seed=settings.seed)
    reloader, trouble, finished, refused = SettingsReloader(settings), StoreTrouble(), False, ""
    try:
        while not life.signals.stops and not finished:
            life.lock.verify()
            now = time.monotonic()
            outcome = reloader.poll(now)
            if outcome is not None:
                outcome.log_outcome()
                refused = str(outcome.error or "")
                desk.settings = dispatcher.settings = outcome.settings
            dispatcher.follow(now)
            with trouble.tolerated():
                store.verify()
                desk.refresh()
                dispatcher.tick(now, only=run.id)
                finished = _finished(store, run)
            life.lock.tell(desk.settings, trouble=trouble.text, refused=refused)
            time.sleep(TICK_SECONDS)
    finally:
        drain(dispatcher, life.signals, settings.stop_timeout_seconds)
        with trouble.tolerated():
            desk.refresh()  # writes down what the guard has decided meanwhile
    return run


def _follow(
    settings: Settings, store: Store, run: Run, narrator: Narrator, signals: Signals
) -> None:
    """Tell of *run* until it ends; a signal ends the telling, not the run."""
    tails: dict[int, EventTail] = {}
    state, look_at = None, 0.0
    while not signals.stops:
        now = time.monotonic()
        if now >= look_at:
            look_at = now + LOOK_FOR_DAEMON_SECONDS
            if _daemon_is_gone(settings):
                raise DaemonGoneError(run.id)
        current = store.run(run.id) or run  # before the events: all precede the last state
        for attempt in store.attempts(run.id):
            path = attempt_folder(settings.home, attempt) / "events.ndjson"
            for event in tails.setdefault(attempt.number, EventTail(path)).read():
                narrator.on_event(run.agent, run.id, event)
        if current.state is not state:
            state = current.state
            narrator.on_run_state(run.agent, run.id, state)
        if current.finished:
            return
        time.sleep(TICK_SECONDS)
    log.info("run_goes_on", run_id=run.id, remedy="genesis-fp16 runs shows how it ends")


def _daemon_is_gone(settings: Settings) -> bool:
    try:
        with DaemonLock(settings):
            return True
    except LockHeldError:
        return False


def _finished(store: Store, run: Run) -> bool:
    found = store.run(run.id)
    return found is not None and found.finished


def _exit_code(store: Store, run_id: str) -> int:
    run, attempts = store.run(run_id), store.attempts(run_id)
    if run is None or not run.finished:
        return os.EX_TEMPFAIL
    if run.state is RunState.SUCCEEDED:
        return 0
    refused = bool(attempts) and attempts[-1].exit_code == os.EX_CONFIG
    return os.EX_CONFIG if refused else 1
