"""The life of the daemon: start, serve, reload, drain, stop.

It serves before it knows its agents: they are probed in the background, become ready one by one,
and come and go while it serves.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict
from itertools import islice

import structlog

import genesis_fp16
from genesis_fp16.daemon.control import ControlApi, reserve_address
from genesis_fp16.daemon.guarded_models import GuardedModels
from genesis_fp16.daemon.http import start_http
from genesis_fp16.daemon.log import configure_logging, log_ignored_settings
from genesis_fp16.daemon.prediction import PredictionService, check_predictor_tokens
from genesis_fp16.daemon.predictors_elsewhere import DaemonSide, Repeated
from genesis_fp16.daemon.predictors_elsewhere.objects import PLACE
from genesis_fp16.daemon.readiness import Readiness
from genesis_fp16.daemon.run_log import RunLogger, open_run_logger
from genesis_fp16.daemon.run_loop import DRAIN_GRACE_SECONDS, TICK_SECONDS, RunLoop, open_store
from genesis_fp16.daemon.standby import check_standby, wait_for_workers, wait_to_lead
from genesis_fp16.daemon.startup import ProbeResults
from genesis_fp16.daemon.systemd import SystemdNotices
from genesis_fp16.daemon.telemetry import LogCopy, TelemetryService
from genesis_fp16.domain.guard import Decision
from genesis_fp16.domain.listener import EventListener
from genesis_fp16.domain.pause import PausesInForce, pauses_of
from genesis_fp16.domain.predictor import KnownAgent
from genesis_fp16.metrics import Metrics
from genesis_fp16.plugins.discovery import check_not_shadowed
from genesis_fp16.plugins.probe import HardwareProbeError, Plugin
from genesis_fp16.plugins.watch import PluginWatch
from genesis_fp16.runs.baselines import BaselineRuns
from genesis_fp16.runs.outcome_counts import OutcomeCounts
from genesis_fp16.runs.retention import Retention
from genesis_fp16.runs.schedule import Timetable
from genesis_fp16.settings import Settings
from genesis_fp16.store import DaemonLock, Store, StoreError
from genesis_fp16.store.home import refuse_foreign_folder
from genesis_fp16.system.bucket import Bucket
from genesis_fp16.system.permissions import close_to_others, private_umask
from genesis_fp16.system.signals import Signals
from infrastructure.agent_contract import Schedule

VERIFY_LOCK_SECONDS = 0.2
REPEAT_ERROR_SECONDS = 60.0
IDLE_STORE_SECONDS = 1.0  # between two looks into the store while nothing runs or is due
PLUGINS_SECONDS = 0.05  # of a round, for agents whose state or settings have changed
SUCCESSES_PER_ROUND = 50

log = structlog.get_logger()


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then let the workers checkpoint and stop.

    A second signal kills the workers; their runs resume from the last checkpoint.

    Raises:
        GenesisError: The daemon cannot serve; its exit code depends on the cause.
    """
    log_copy = LogCopy() if settings.otel else None
    configure_logging(settings, log_copy)
    check_not_shadowed()
    check_standby(settings)
    check_predictor_tokens(settings)
    log.info(
        "daemon_started",
        version=genesis_fp16.__version__,
        home=str(settings.home.absolute()),
        settings_file=str(settings.env_file),
        settings_file_exists=settings.env_file.exists(),
    )
    log_ignored_settings(settings)
    home = settings.home.absolute()
    refuse_foreign_folder(home)
    with ExitStack() as stack:
        signals = stack.enter_context(Signals())
        stack.enter_context(private_umask(home))
        lock = DaemonLock(settings)
        stack.callback(lock.release)
        metrics, readiness, watch = Metrics(), Readiness(), PluginWatch(settings)
        notices = stack.enter_context(SystemdNotices())
        address = None
        if settings.standby:  # it is scraped, and knows its agents, before it leads
            address = reserve_address(settings)
            if address is not None:
                stack.callback(address.close)
            metrics_url = _listen(stack, settings, metrics, readiness)
            _watch(stack, watch)
            if not wait_to_lead(lock, signals, metrics, readiness, notices, watch.check_hardware):
                return
        else:
            lock.acquire()
            if not wait_for_workers(lock, signals):
                return
        store = stack.enter_context(closing(open_store(settings)))
        close_to_others(home)
        run_logger = stack.enter_context(closing(open_run_logger(store)))
        if not settings.standby:
            metrics_url = _listen(stack, settings, metrics, readiness)
        tick_telemetry = _export_telemetry(stack, settings, metrics_url, log_copy)
        control = stack.enter_context(closing(ControlApi(settings, reserved=address)))
        if not settings.standby:
            _watch(stack, watch)
        daemon = Daemon(settings, store, watch, metrics, run_logger)
        lock.begin(daemon.loop.executor.extend_lease)
        metrics.set_leader(True)
        daemon.start()
        tick_prediction = _serve_predictions(stack, settings, store, daemon)
        if settings.predict_shared:
            _share_models(stack, settings)

        def tick_services() -> None:
            control.tick()
            tick_prediction()
            tick_telemetry()

        _run_rounds(daemon, signals, lock, tick_services, readiness, notices)
    log.info("daemon_stopped")


def _serve_predictions(
    stack: ExitStack, settings: Settings, store: Store, daemon: Daemon
) -> Callable[[], None]:
    """Answer running agents, and guard their models; returns what every round has to call."""
    guarded = GuardedModels(settings, store, daemon.metrics, daemon.may_run)
    stack.enter_context(closing(guarded))
    prediction = PredictionService(settings, daemon.known_agents, guarded.on_figures)
    stack.enter_context(closing(prediction))

    def tick() -> None:
        prediction.tick()
        guarded.tick(daemon.loop.settings)

    return tick


def _share_models(stack: ExitStack, settings: Settings) -> None:
    """Give models to predict-servers, and take their outcomes, until the daemon ends."""
    if settings.shared_url is None:
        log.error("predictors_not_shared", remedy="set GENESIS_SHARED_URL to a bucket")
        return
    side = DaemonSide(settings.home.absolute(), Bucket(settings.shared_url).below(PLACE))
    stack.enter_context(closing(Repeated(side.step)))


def _export_telemetry(
    stack: ExitStack, settings: Settings, metrics_url: str, log_copy: LogCopy | None
) -> Callable[[], None]:
    """Export over OTLP if *log_copy* is given; returns what every round has to call."""
    if log_copy is None:
        return lambda: None
    log_copy.open(settings.home)
    stack.callback(log_copy.close)
    return stack.enter_context(closing(TelemetryService(settings, metrics_url))).tick


def _listen(stack: ExitStack, settings: Settings, metrics: Metrics, readiness: Readiness) -> str:
    """Serve the metrics; return their URL."""
    metrics.watch_home(settings.home)
    server = start_http(settings, metrics, readiness)
    stack.callback(server.stop)
    host = settings.metrics_host
    url = f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
    log.info("listener_started", metrics=url)
    return url


def _watch(stack: ExitStack, watch: PluginWatch) -> None:
    stack.enter_context(closing(watch))
    watch.start()


class Daemon:
    """The run loop, and what only the daemon has: schedule, retention, baselines, metrics."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        watch: PluginWatch,
        metrics: Metrics,
        run_logger: RunLogger,
    ) -> None:
        self._store, self.watch, self.metrics = store, watch, metrics
        self._baselines = BaselineRuns(store, settings)
        self._retention = Retention(store, settings)
        listeners: list[EventListener] = [self._baselines, self._retention, metrics, run_logger]
        self.loop = RunLoop(settings, store, ProbeResults(), listeners, self._guard_decided)
        self.loop.dispatcher.absent = watch.absent
        self.loop.reloader.in_use = self._keeps_settings
        self._timetable = Timetable(store, settings.seed)
        self._timetable.is_paused = self._is_paused
        self._timetable.count_outcomes = OutcomeCounts(settings.home).of
        self._pauses: PausesInForce = {}  # as logged and shown
        self._used_up: frozenset[str] = frozenset()  # agents whose quota is; as shown
        self._ask_store_at = 0.0  # in monotonic seconds
        self._ready: dict[str, Plugin] = {}
        self._unseen: set[str] = set()  # agents whose last success has not been read
        self._reported_scan = 0.0
        self._to_review: deque[str] = deque()  # agents whose settings may have changed

    def start(self) -> None:
        """Take over what an earlier daemon left."""
        self.loop.dispatcher.recover(time.monotonic())
        log.info("daemon_ready", next="genesis-fp16 agents, runs, doctor; Ctrl-C stops")

    def _update_plugins(self) -> None:
        """Take note of the device and of agents that have changed, for a part of a round.

        Raises:
            HardwareProbeError: The device that the settings name cannot be used.
        """
        self.watch.check_hardware()
        if self.loop.resolver.hardware is None and (hardware := self.watch.hardware) is not None:
            self.loop.resolver.hardware = hardware
            log.info("hardware_known", **asdict(hardware))
            for ready in self._ready.values():
                self._allow(ready)
        until = time.monotonic() + PLUGINS_SECONDS
        self._review(until)
        while (plugin := self.watch.take()) is not None:
            self._update_plugin(plugin)
            if time.monotonic() >= until:
                return
        if self._reported_scan != self.watch.scanned_at:
            self._reported_scan = self.watch.scanned_at
            self._report_plugins()

    def _review(self, until: float) -> None:
        """Apply changed settings to agents until the monotonic time *until*, or to one at least."""
        while self._to_review:
            plugin = self._ready.get(self._to_review.popleft())
            if plugin is not None:
                self._log_precision(plugin.name)
                self._schedule(plugin, self._timetable.change)
            if time.monotonic() >= until:
                return

    def _update_plugin(self, plugin: Plugin) -> None:
        name, up = plugin.name, plugin.state == "ready"
        was_up = self._ready.pop(name, None) is not None
        self.loop.agents.pop(name, None)
        if up:
            self._ready[name] = plugin
            self._schedule(plugin, self._timetable.add)
        elif plugin.state != "pending":  # one that is pending will be back soon
            self._timetable.remove(name)
            if was_up:
                self.metrics.set_next_run(name, math.nan, math.nan)
        if plugin.state in ("ready", "quarantined"):  # one that is disabled is not down
            self.metrics.register_agent(name)
            self.metrics.set_plugin_up(name, up)
            self._show_paused(name)
            self.metrics.set_guard_state(name, self.loop.guard.decision(name).state)
            self._unseen.add(name)
        elif plugin.state == "removed":
            self.metrics.forget_plugin(name)
        fields = {"agent": name, "distribution": f"{plugin.distribution} {plugin.version}"}
        if up:
            log.info("plugin_ready", **fields)
            if self.loop.resolver.hardware is not None:
                self._allow(plugin)
        else:
            write = log.warning if plugin.state == "quarantined" else log.info
            write(f"plugin_{plugin.state}", **fields, reason=plugin.reason)

    def _is_paused(self, agent: str) -> bool:
        return bool(pauses_of(self.loop.dispatcher.pauses, agent))

    def _show_paused(self, agent: str) -> None:
        self.metrics.set_paused(agent, self._is_paused(agent) or agent in self._used_up)

    def _update_pauses(self) -> None:
        """Log pauses that began or ended, and show which agents are paused."""
        used_up, self._used_up = self._used_up, frozenset(self.loop.dispatcher.used_up)
        for agent in used_up ^ self._used_up:
            if agent in self._used_up:
                log.info("quota_used_up", agent=agent)
            self._show_paused(agent)
        before, self._pauses = self._pauses, self.loop.dispatcher.pauses
        if before == self._pauses:
            return
        for scope in {**before, **self._pauses}:
            name, pause = scope or "all", self._pauses.get(scope)
            if pause is None:
                log.info("agent_resumed", agent=name)
            elif pause != before.get(scope):
                log.info("agent_paused", agent=name, actor=pause.actor, reason=pause.reason)
        for agent in self._ready:
            self._show_paused(agent)
        self._timetable.changed |= self._timetable.next_runs.keys()

    def _keeps_settings(self, key: str) -> bool:
        """Whether settings of the agent that are not live wait for the next start."""
        disabled = self.loop.settings.for_agent(key).enabled is False
        return disabled or key.replace("_", "-") in self._ready

    def _allow(self, plugin: Plugin) -> None:
        """Let runs of the agent start: it and the device are known."""
        self.loop.agents[plugin.name] = plugin.entry_point
        self._log_precision(plugin.name)

    def _report_plugins(self) -> None:
        """Log what only a complete list of the agents shows."""
        names = self.watch.names
        log.info("plugins_probed", installed=len(names), ready=len(self._ready))
        known = {name.replace("-", "_") for name in names}
        for key in self.loop.settings.agents.keys() - known:
            log.warning("unknown_agent_configured", key=key, installed=sorted(known))
        self._check_canaries()
        if not self._ready:
            log.warning(
                "agents_unavailable", remedy="see the reasons above, or genesis-fp16 agents"
            )

    def _check_canaries(self) -> None:
        """Log canaries that are not agents; if none is, every agent stays in FP32."""
        if not self.watch.scanned_at:
            return
        ready = set(self._ready)
        canaries = set(self.loop.settings.canaries)
        if missing := sorted(canaries - ready):
            write = log.warning if canaries & ready else log.error
            effect = "" if canaries & ready else "every agent stays in FP32"
            write("canaries_not_found", canaries=missing, ready_agents=sorted(ready), effect=effect)

    def _guard_decided(self, decision: Decision) -> None:
        self.metrics.set_guard_state(decision.agent, decision.state)
        if decision.tripped and decision.trigger is not None:
            self.metrics.guard_tripped(decision.agent, decision.trigger)

    def _schedule(self, plugin: Plugin, put: Callable[[str, Schedule], None]) -> None:
        """Put the schedule in force of the agent, if it has one, into the timetable."""
        if plugin.schedule is None:
            return
        schedule = self.loop.settings.schedule_for(plugin.name, plugin.schedule)
        try:
            put(plugin.name, schedule)
        except ValueError as error:
            agent, text = plugin.name, str(schedule)
            log.error("schedule_refused", agent=agent, schedule=text, error=str(error))

    def _log_precision(self, agent: str) -> None:
        """Log the precision resolved for *agent*; a worker still has to acknowledge it."""
        hardware = self.loop.resolver.hardware
        device = "unknown" if hardware is None else hardware.device
        state = self.loop.resolver.for_agent(agent)
        log.info("precision_resolved", agent=agent, device=device, **state.fields)

    def round(self, now: float, *, reload: bool) -> str:
        """Run one round of the loop; what a rollback needs comes first and needs no store.

        Returns why the store fails, or an empty text; arguments as in `RunLoop.begin_round`.
        """
        unix_now = self._store.now()
        self.metrics.loop_ticked(unix_now, now)
        outcome = self.loop.begin_round(now, reload=reload)
        if outcome is not None:
            self.metrics.config_reloaded(outcome.error is None)
            if outcome.changed:
                self.watch.configure(self.loop.settings)
                self._check_canaries()
                self._to_review = deque(self._ready)
        if reload:
            self.watch.rescan()
        self._update_plugins()
        active = bool(self.loop.dispatcher.busy) or self._timetable.has_work(unix_now)
        active = active or bool(self._unseen)
        if active or outcome is not None or now >= self._ask_store_at:
            self._ask_store_at = now if active else now + IDLE_STORE_SECONDS
            with self.loop.store_health.catch_errors():
                self._use_store(now, unix_now)
        self.loop.executor.keep_spare(self.loop.settings.prewarm and bool(self.watch.scanned_at))
        problem = self.loop.store_health.problem
        self.metrics.set_store_up(not problem)
        self._update_metrics()
        return problem

    def may_run(self, agent: str) -> bool:
        """Whether a run of *agent* may be queued: it is ready and not paused."""
        return agent in self._ready and not self._is_paused(agent)

    def has_scheduled_work(self) -> bool:
        """Whether the next round has runs or due times of the timetable to record."""
        return self._timetable.has_work(self._store.now())

    def known_agents(self) -> dict[str, KnownAgent]:
        """What predictors are told of each installed agent."""
        settings, known = self.loop.settings, {}
        for name in self.watch.names:
            explore, plugin = settings.for_agent(name).explore, self._ready.get(name)
            if plugin is None:
                known[name] = KnownAgent(explore=explore)
                continue
            version = f"{plugin.distribution} {plugin.version}"
            known[name] = KnownAgent(
                explore=explore, entry_point=plugin.entry_point, version=version
            )
        return known

    def _use_store(self, now: float, unix_now: float) -> None:
        self.loop.dispatch(now)
        self._baselines.tick()
        for agent in list(islice(self._unseen, SUCCESSES_PER_ROUND)):
            if succeeded_at := self._store.last_success(agent):
                self.metrics.set_last_success(agent, succeeded_at)
            self._unseen.discard(agent)
        self._timetable.tick(unix_now)
        self._retention.tick()  # last: an error of the store in it must not delay a run

    def _update_metrics(self) -> None:
        dispatcher, timetable = self.loop.dispatcher, self._timetable
        self._update_pauses()
        self.metrics.set_queue(dispatcher.queued, dispatcher.busy, self.loop.settings.slots)
        self.metrics.set_unknown_settings(len(self.loop.settings.unknown))
        self.metrics.set_engine_trouble(self.loop.executor.trouble_seconds())
        while timetable.changed:
            agent = timetable.changed.pop()
            due_at, period = timetable.next_runs[agent], timetable.periods[agent]
            if self._is_paused(agent):
                due_at, period = None, math.nan
            self.metrics.set_next_run(agent, math.nan if due_at is None else due_at, period)
            if agent in timetable.lags:
                self.metrics.set_schedule_lag(agent, timetable.lags[agent])


def _run_rounds(
    daemon: Daemon,
    signals: Signals,
    lock: DaemonLock,
    tick_services: Callable[[], None],
    readiness: Readiness,
    notices: SystemdNotices,
) -> None:
    """Run rounds until a signal or the loss of the lock, then drain."""
    notices.send("READY=1")
    verify_at = repeat_error_at = 0.0
    try:
        while not signals.stop_count:
            now = time.monotonic()
            if now >= verify_at:
                lock.verify()
                verify_at = now + VERIFY_LOCK_SECONDS
            reload, signals.reload_requested = signals.reload_requested, False
            if reload:
                notices.send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
            try:
                readiness.problem = daemon.round(now, reload=reload)
            except HardwareProbeError:
                raise
            except Exception as error:  # of any kind: the next round may succeed
                readiness.problem = f"the last round failed: {error!r}"
                daemon.metrics.round_failed()
                if now >= repeat_error_at:
                    log.exception("round_failed")
                    repeat_error_at = now + REPEAT_ERROR_SECONDS
            lock.write_status(
                daemon.loop.settings,
                trouble=readiness.problem,
                refused=daemon.loop.settings_error,
                scanned_at=daemon.watch.scanned_at,
                probing=daemon.watch.slow_probes,
                device=daemon.loop.resolver.device,
            )
            tick_services()
            if not readiness.problem:  # clock, dispatcher and store have all worked
                notices.send_watchdog()
            if reload:
                notices.send("READY=1")
            time.sleep(TICK_SECONDS)
    except StoreError:
        daemon.metrics.set_leader(False)
        raise
    finally:
        readiness.problem = "stopping"
        daemon.loop.executor.keep_spare(False)
        daemon.watch.close()
        seconds = daemon.loop.settings.stop_timeout_seconds + 2 * DRAIN_GRACE_SECONDS
        notices.send_last(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={seconds * 1e6:.0f}")
        daemon.loop.drain(signals)
