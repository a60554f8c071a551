"""What the daemon and a run in the foreground share: one round of the loop, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from genesis_fp16.daemon.precision_resolver import PrecisionResolver
from genesis_fp16.daemon.startup import ProbeResults
from genesis_fp16.domain.guard import Decision
from genesis_fp16.domain.listener import EventListener
from genesis_fp16.domain.run import RunState
from genesis_fp16.executors.choice import make_executor
from genesis_fp16.guard import Guard
from genesis_fp16.runs.dispatcher import Dispatcher
from genesis_fp16.settings import Settings
from genesis_fp16.settings.reload import Reload, SettingsReloader
from genesis_fp16.settings.rollback_memory import RollbackMemory
from genesis_fp16.store import Store, StoreError
from genesis_fp16.store.decisions import UnreadableOverride
from genesis_fp16.system.signals import Signals
from infrastructure.events import Event
from infrastructure.events.plain_text import plain

TICK_SECONDS = 0.2
STORE_BUSY_MILLISECONDS = 300  # a locked store must not hold up a change of precision
DRAIN_GRACE_SECONDS = 0.9  # beyond the stop deadline, for the kernel to end killed processes
_DRAIN_POLL_SECONDS = 0.05
_REPEAT_SECONDS = 60.0

log = structlog.get_logger()


def open_store(settings: Settings) -> Store:
    """Open the store for a loop: what cannot be recorded at once is recorded in a later round.

    Raises:
        StoreError: The database cannot be used.
    """
    return Store.open(settings, busy_milliseconds=STORE_BUSY_MILLISECONDS)


class StoreHealth:
    """Whether the store works. A store that is locked, full or moved away does not end the loop.

    Attributes:
        problem: The last error; empty while the store works.
    """

    def __init__(self) -> None:
        self.problem = ""
        self._log_at = 0.0

    @contextmanager
    def catch_errors(self) -> Iterator[None]:
        """Leave the block at an error of the store, and log it once a minute at most."""
        try:
            yield
        except (SQLAlchemyError, StoreError) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            self.problem = f"the store fails: {cause}"
            now = time.monotonic()
            if now >= self._log_at:
                self._log_at = now + _REPEAT_SECONDS
                look_at = "error" if isinstance(error, StoreError) else "disk"
                remedy = f"the daemon retries by itself; see the {look_at}"
                log.error("store_failed", error=str(cause), remedy=remedy)
        else:
            if self.problem:
                log.info("store_recovered")
            self.problem, self._log_at = "", 0.0


class Listeners:
    """Passes everything on to each of several listeners, even if another one raises an error.

    An error is logged once for each listener and type of error, since workers choose what events
    hold: a listener that fails at one event is likely to fail at the next.
    """

    def __init__(self, listeners: Sequence[EventListener]) -> None:
        self._listeners = tuple(listeners)
        self._logged: set[str] = set()

    def on_event(self, agent: str, run_id: str, event: Event) -> None:
        """See `EventListener`."""
        self._notify(lambda listener: listener.on_event(agent, run_id, event))

    def on_run_state(self, agent: str, run_id: str, state: RunState) -> None:
        """See `EventListener`."""
        self._notify(lambda listener: listener.on_run_state(agent, run_id, state))

    def _notify(self, call: Callable[[EventListener], None]) -> None:
        for listener in self._listeners:
            try:
                call(listener)
            except Exception as error:  # an error in a listener must not fail a run
                kind = f"{type(listener).__name__}: {type(error).__name__}"
                if kind not in self._logged:
                    self._logged.add(kind)
                    failure = plain(f"{type(listener).__name__}: {error!r}")
                    log.exception("listener_failed", failure=failure)


class RunLoop:
    """Reloads settings, resolves precision and dispatches runs, round by round.

    Args:
        store: An open store, locked for this process.
        listeners: Receive events and states after the guard.
        on_decision: Called with each new decision of the guard.

    Attributes:
        settings: Settings in force.
        agents: Agent to entry point, of the agents that may run; it may change.
        executor: Starts the workers.
        reloader: Reads the settings file again.
        settings_error: Why the settings file's latest content is not in force; empty if it is.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        probes: ProbeResults,
        listeners: Sequence[EventListener],
        on_decision: Callable[[Decision], None] = lambda _decision: None,
    ) -> None:
        self.settings = settings
        self.settings_error = ""
        self.store_health = StoreHealth()
        self.agents = probes.entry_points
        self._store = store
        self.reloader = SettingsReloader(settings)
        self.guard = Guard(store, settings, on_decision)
        self.resolver = PrecisionResolver(store, probes.hardware, settings, self.guard)
        self.executor = make_executor(lambda: self.settings)
        self.dispatcher = Dispatcher(
            store,
            self.executor,
            settings,
            self.agents,
            self.resolver,
            Listeners([self.guard, *listeners]),
        )
        self._memory = RollbackMemory(settings)
        with self.store_health.catch_errors():
            self._keep_rollbacks()

    def begin_round(self, now: float, *, reload: bool = False) -> Reload | None:
        """Do what a rollback needs and what needs no store: apply settings, follow the attempts.

        With *reload*, the settings file counts as changed; *now* is in monotonic seconds.

        Returns:
            The outcome of a reload; None if the settings file has not changed.
        """
        outcome = self.reloader.reload() if reload else self.reloader.poll(now)
        if outcome is not None:
            self.settings_error = str(outcome.error or "")
            outcome.log_outcome()
            self.settings = outcome.settings
            self.guard.settings = self.resolver.settings = self.settings
            self.dispatcher.settings = self.settings
            self._memory.keep(self.settings, self._memory.remembered.overrides)
        self.dispatcher.follow(now)
        return outcome

    def dispatch(self, now: float, *, only: str | None = None) -> None:
        """Read overrides and pauses, write decisions, and dispatch; see `Dispatcher.tick`.

        Raises:
            StoreError, SQLAlchemyError: The store fails; the next round tries again.
        """
        self._store.verify()
        self.resolver.refresh()
        self._keep_rollbacks()
        self.dispatcher.pauses = self._store.pauses.in_force()
        self.dispatcher.tick(now, only=only)

    def _keep_rollbacks(self) -> None:
        """Restore overrides that vanished from the store, and remember what is in force."""
        in_force = self.resolver.overrides
        missing = [
            override for override in self._memory.remembered.overrides if override not in in_force
        ]
        if missing and (restored := self._store.overrides.restore(missing)):
            for override in restored:
                log.warning(
                    "override_restored",
                    agent=override.agent or "all",
                    precision=override.precision,
                    actor=override.actor,
                    reason=override.reason,
                    remedy="genesis-fp16 precision clear ends it",
                )
            self.resolver.refresh()
        readable = [o for o in self.resolver.overrides if not isinstance(o, UnreadableOverride)]
        self._memory.keep(self.settings, readable)

    def drain(self, signals: Signals) -> None:
        """Stop all attempts and wait for their end; kill them at the deadline or another signal."""
        dispatcher, stop_seconds = self.dispatcher, self.settings.stop_timeout_seconds
        earlier_stops, began_at, store = signals.stop_count, time.monotonic(), StoreHealth()
        if dispatcher.busy:
            log.info("drain_started", attempts=dispatcher.busy, deadline_seconds=stop_seconds)
        dispatcher.stop_all(began_at)
        while dispatcher.busy and time.monotonic() - began_at < stop_seconds + DRAIN_GRACE_SECONDS:
            if signals.stop_count > earlier_stops:
                dispatcher.kill_all()
            dispatcher.follow(time.monotonic())
            if not (store.problem and dispatcher.alive):  # a failing store must not delay the kill
                with store.catch_errors():
                    dispatcher.follow_and_record(time.monotonic())
            if store.problem and not dispatcher.alive:
                break
            time.sleep(_DRAIN_POLL_SECONDS)
        dispatcher.kill_all()
        if dispatcher.busy:  # the store fails, or there are more events than could be read in time
            consequence = "the next start takes them over"
            log.warning("runs_left_open", runs=dispatcher.busy, consequence=consequence)
        self.executor.close()
        with self.store_health.catch_errors():
            self.resolver.refresh()  # writes decisions that the guard has made meanwhile
