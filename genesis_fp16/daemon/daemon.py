"""The life of the daemon: start, serve, reload, drain, stop."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack, closing
from datetime import UTC, datetime

import sdnotify
import structlog
from rich.console import Console

import genesis_fp16
from genesis_fp16.daemon.draining import DRAIN_GRACE_SECONDS, drain
from genesis_fp16.daemon.http import start_http
from genesis_fp16.daemon.listeners import Listeners
from genesis_fp16.daemon.log import configure_logging
from genesis_fp16.daemon.precision_resolver import PrecisionDesk
from genesis_fp16.daemon.run_log import Narrator
from genesis_fp16.daemon.startup import Findings, StoppedEarlyError, look_around
from genesis_fp16.daemon.store_trouble import StoreTrouble
from genesis_fp16.domain.guard import Decision, GuardState
from genesis_fp16.domain.schedule import effective_schedule
from genesis_fp16.executors import LocalExecutor
from genesis_fp16.guard import Fallbacks, Guard
from genesis_fp16.metrics import Metrics
from genesis_fp16.plugins.discovery import check_not_shadowed
from genesis_fp16.runs.baselines import BaselineRuns
from genesis_fp16.runs.dispatcher import Dispatcher
from genesis_fp16.runs.retention import Retention
from genesis_fp16.runs.schedule import Timetable
from genesis_fp16.settings import Settings
from genesis_fp16.settings.reload import Reload, SettingsReloader
from genesis_fp16.store import DaemonLock, Store
from genesis_fp16.system.signals import Signals

TICK_SECONDS = 0.2
VERIFY_LOCK_SECONDS = 1.0
STORE_BUSY_MILLISECONDS = 300  # a locked store must not hold up a change of precision
REPEAT_ERROR_SECONDS = 60.0

log = structlog.get_logger()


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT, then let the workers checkpoint and stop.

    A second signal kills the workers; they resume from their last checkpoint all the same.

    Returns:
        The exit code, 0.

    Raises:
        GenesisError: The daemon cannot serve; its exit code says of which kind.
    """
    configure_logging(settings)
    check_not_shadowed()
    log.info(
        "daemon_starting",
        version=genesis_fp16.__version__,
        home=str(settings.home.absolute()),
        settings_file=str(settings.env_file),
        settings_file_exists=settings.env_file.exists(),
    )
    with ExitStack() as stack:
        signals = stack.enter_context(Signals())
        lock = stack.enter_context(DaemonLock(settings))
        store = stack.enter_context(closing(open_store(settings)))
        console, runs = Console(stderr=True, soft_wrap=True), settings.home.absolute() / "runs"
        narrator = stack.enter_context(closing(Narrator(console, runs=runs)))
        metrics, health = Metrics(), _Health()
        metrics.set_leader(True)
        metrics.watch_home(settings.home)
        server = start_http(settings, metrics, health)
        stack.callback(server.stop)
        log.info("listening", metrics=f"http://{settings.metrics_host}:{server.port}/metrics")
        try:
            findings = look_around(settings, signals)
        except StoppedEarlyError:
            return 0
        daemon = Daemon(settings, store, findings, metrics, narrator)
        daemon.start()
        _loop(daemon, signals, lock, health)
    log.info("daemon_stopped")
    return 0


def open_store(settings: Settings) -> Store:
    """Open the store for a loop: what it cannot record at once it records in a later round.

    Raises:
        StoreError: The database cannot be used.
    """
    return Store.open(settings, busy_milliseconds=STORE_BUSY_MILLISECONDS)


class _Health:
    """Whether the daemon takes work; asked by the listener's threads."""

    def __init__(self) -> None:
        self.trouble = "starting"

    def __call__(self) -> tuple[bool, str]:
        return not self.trouble, self.trouble or "serving"


class Daemon:
    """Everything that one round of the loop touches.

    Args:
        settings: In force at the start.
        store: Open, and locked for this process.
        findings: Plugins and hardware.
        metrics: Shown by the listener.
        narrator: Tells the story in the log.

    Attributes:
        settings: In force.
        refused: Why the settings file's latest content is not; empty if it is.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        findings: Findings,
        metrics: Metrics,
        narrator: Narrator,
    ) -> None:
        self.settings = settings
        self._store = store
        self._findings = findings
        self._metrics = metrics
        self._guard = Guard(store, settings, self._guard_decided)
        fallbacks = Fallbacks(store, settings.home)
        self._baselines = BaselineRuns(store, settings)
        self._retention = Retention(store, settings)
        self._desk = PrecisionDesk(store, findings.hardware, settings, self._guard, fallbacks)
        self._dispatcher = Dispatcher(
            store,
            LocalExecutor(),
            settings,
            findings.entry_points,
            self._desk,
            Listeners(
                [self._guard, fallbacks, self._baselines, self._retention, metrics, narrator]
            ),
        )
        self._timetable = Timetable(store, settings.seed)
        self._reloader = SettingsReloader(settings)
        self.refused = ""
        self._trouble = StoreTrouble()
        ready = [plugin for plugin in findings.plugins if plugin.state == "ready"]
        self._unscheduled = {each.name: each.schedule for each in ready if each.schedule}

    def start(self) -> None:
        """Say what there is, take over what an earlier daemon left, fill the timetable."""
        self._dispatcher.recover(time.monotonic())
        for plugin in self._findings.plugins:
            if plugin.state != "disabled":  # what an operator has switched off is not down
                self._metrics.register_agent(plugin.name)
                self._metrics.set_plugin_up(plugin.name, plugin.state == "ready")
                guard = self._guard.decision(plugin.name)
                self._metrics.set_guard_state(plugin.name, guard.state)
                self._metrics.set_last_success(plugin.name, self._store.last_success(plugin.name))
            fields = {"agent": plugin.name, "from": f"{plugin.distribution} {plugin.version}"}
            if plugin.state == "ready":
                log.info("plugin_ready", **fields)
            else:
                tell = log.warning if plugin.state == "quarantined" else log.info
                tell(f"plugin_{plugin.state}", **fields, reason=plugin.reason)
        with self._trouble.tolerated():
            self._schedule()
        known = {plugin.name.replace("-", "_") for plugin in self._findings.plugins}
        for key in self.settings.agents.keys() - known:
            log.warning("settings_of_unknown_agent", key=key, installed=sorted(known))
        self._tell_of_canaries()
        if not self._findings.entry_points:
            log.warning("no_agent_ready", remedy="see the reasons above, or genesis-fp16 agents")
        self._log_precision()
        log.info("daemon_ready", next="genesis-fp16 agents, runs, doctor; Ctrl-C stops")

    def _tell_of_canaries(self) -> None:
        """Say which canaries are no agents; where none is, every agent stays in FP32."""
        agents = {plugin.name for plugin in self._findings.plugins if plugin.state == "ready"}
        wanted = set(self.settings.canaries)
        if missing := sorted(wanted - agents):
            tell = log.warning if wanted & agents else log.error
            effect = "" if wanted & agents else "every agent stays in FP32"
            tell("canaries_are_no_agents", canaries=missing, ready=sorted(agents), effect=effect)

    def _guard_decided(self, decision: Decision) -> None:
        self._metrics.set_guard_state(decision.agent, decision.state)
        if decision.state is GuardState.TRIPPED and decision.trigger is not None:
            self._metrics.guard_tripped(decision.agent, decision.trigger)

    def _schedule(self) -> None:
        """Put agents on the timetable; where the store fails, the next round tries again."""
        for agent, own in list(self._unscheduled.items()):
            schedule, now = (
                effective_schedule(self.settings.for_agent(agent).schedule, own),
                self._store.now(),
            )
            try:
                self._timetable.add(agent, schedule, now)
            except ValueError as error:
                log.error("schedule_refused", agent=agent, schedule=str(schedule), error=str(error))
            else:
                due = _moment(self._timetable.next_runs()[agent])
                log.info("scheduled", agent=agent, schedule=str(schedule), next_run=due)
            del self._unscheduled[agent]

    def _log_precision(self) -> None:
        """Say what was decided; what is in force is what a worker acknowledges."""
        for agent in self._findings.entry_points:
            state = self._desk.for_agent(agent)
            log.info(
                "precision",
                agent=agent,
                device=self._findings.hardware.device,
                requested=state.requested,
                effective=state.effective,
                reason=state.reason,
            )

    def round(self, now: float, *, reload: bool) -> str:
        """One turn of the loop. What the rollback needs comes first and needs no store.

        Args:
            now: Monotonic seconds.
            reload: Read the settings file whether it has changed or not.

        Returns:
            The store's trouble; empty while it works.
        """
        self._metrics.loop_ticked(self._store.now(), now)
        outcome = self._reloader.reload() if reload else self._reloader.poll(now)
        if outcome is not None:
            self._apply(outcome)
        self._dispatcher.follow(now)
        with self._trouble.tolerated():
            self._store.verify()
            self._desk.refresh()
            self._dispatcher.tick(now)
            self._baselines.tick()
            self._schedule()
            self._timetable.tick(self._store.now())
            self._retention.tick()  # last: no run waits for what the store refuses here
        self._metrics.set_store_up(not self._trouble.text)
        self._show()
        return self._trouble.text

    def count_failed_round(self) -> None:
        """Show in the metrics that `round` has raised."""
        self._metrics.round_failed()

    def _apply(self, outcome: Reload) -> None:
        self._metrics.config_reloaded(outcome.error is None)
        self.refused = str(outcome.error or "")
        outcome.log_outcome()
        self.settings = self._desk.settings = self._dispatcher.settings = outcome.settings
        if outcome.changed:
            self._tell_of_canaries()
            self._log_precision()

    def _show(self) -> None:
        slots = self.settings.slots
        self._metrics.set_queue(self._dispatcher.queued, self._dispatcher.busy, slots)
        for agent, due_at in self._timetable.next_runs().items():
            period = self._timetable.period_seconds(agent)
            self._metrics.set_next_run(agent, math.nan if due_at is None else due_at, period)
        for agent, seconds in self._timetable.lags().items():
            self._metrics.set_schedule_lag(agent, seconds)

    def drain(self, signals: Signals) -> None:
        """Let the workers checkpoint and stop; a further signal kills them."""
        drain(self._dispatcher, signals, self.settings.stop_timeout_seconds)
        with self._trouble.tolerated():
            self._desk.refresh()  # writes down what the guard has decided meanwhile


def _loop(daemon: Daemon, signals: Signals, lock: DaemonLock, health: _Health) -> None:
    """Go round until a signal or the loss of the lock, then drain."""
    notifier = sdnotify.SystemdNotifier()
    notifier.notify("READY=1")
    verify_at = repeat_error_at = 0.0
    try:
        while not signals.stops:
            now = time.monotonic()
            if now >= verify_at:
                lock.verify()
                verify_at = now + VERIFY_LOCK_SECONDS
            reload, signals.reload = signals.reload, False
            if reload:
                notifier.notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
            try:
                health.trouble = daemon.round(now, reload=reload)
            except Exception as error:  # whatever it is, the next round may do
                health.trouble = f"the last round failed: {error!r}"
                daemon.count_failed_round()
                if now >= repeat_error_at:
                    log.exception("round_failed")
                    repeat_error_at = now + REPEAT_ERROR_SECONDS
            lock.tell(daemon.settings, trouble=health.trouble, refused=daemon.refused)
            if not health.trouble:  # clock, dispatcher and store have all done their part
                notifier.notify("WATCHDOG=1")
            if reload:
                notifier.notify("READY=1")
            time.sleep(TICK_SECONDS)
    finally:
        health.trouble = "stopping"
        seconds = daemon.settings.stop_timeout_seconds + 2 * DRAIN_GRACE_SECONDS
        notifier.notify(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={seconds * 1e6:.0f}")
        daemon.drain(signals)


def _moment(seconds: float | None) -> str:
    return (
        "never" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
    )
