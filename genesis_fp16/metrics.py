"""Every metric of the daemon, fed by the events of workers and the states of runs.

The only place that declares a metric. Labels are the agent and bounded enums; the identity of a
run is an exemplar, never a label. Every child exists, at 0, from the moment its agent is known.
"""

from __future__ import annotations

import math
import platform
import time
from collections import defaultdict
from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)

import genesis_fp16
from genesis_fp16.guard.trigger import GuardState, Trigger
from genesis_fp16.runs import TERMINAL, RunState
from infrastructure.events import Event, PrecisionState
from infrastructure.events.event import (
    CheckpointSaved,
    Evaluated,
    PrecisionChanged,
    Resumed,
    StepStats,
)
from infrastructure.events.precision_state import REASONS

STEP_OUTCOMES = ("applied", "overflow", "nonfinite_loss", "no_gradient")
ROLLBACK_REASONS = tuple(reason for reason in REASONS if reason != "default")
STEP_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
TRAINING_SECONDS = (1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
CHECKPOINT_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)


class Metrics:
    """The daemon's metrics; an `EventListener` of the dispatcher.

    Args:
        registry: Where the metrics are registered; a new one by default.
        clock: Unix time in seconds.

    Attributes:
        registry: See above.
        last_tick: Unix time of the loop's last round; 0 before the first.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        disable_created_metrics()  # else every counter brings a second series
        self.registry = CollectorRegistry() if registry is None else registry
        self.last_tick = 0.0
        self._clock = clock
        self._agents: set[str] = set()
        self._run_states: dict[str, tuple[str, RunState]] = {}
        self._training_seconds: defaultdict[str, float] = defaultdict(float)
        self._acknowledged: dict[str, PrecisionState] = {}
        self._declare_training()
        self._declare_precision()
        self._declare_runs()
        self._declare_daemon()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, ("agent",), buckets=buckets, registry=self.registry)

    def _declare_training(self) -> None:
        self._steps = self._counter(
            "genesis_training_steps_total",
            "Optimizer steps attempted in every precision, by outcome",
            "agent",
            "outcome",
        )
        self._nonfinite_loss = self._counter(
            "genesis_nonfinite_loss_total", "Steps skipped since the loss was NaN or inf", "agent"
        )
        self._samples = self._counter(
            "genesis_training_samples_total", "Training samples seen", "agent"
        )
        self._loss = self._gauge("genesis_training_loss", "Mean loss of the last steps", "agent")
        self._baseline = self._gauge(
            "genesis_fp32_baseline_loss",
            "Loss of one frozen batch replayed in FP32; NaN until measured",
            "agent",
        )
        self._grad_norm = self._gauge(
            "genesis_training_grad_norm",
            "Last finite gradient norm, unscaled, before clipping",
            "agent",
        )
        self._step_seconds = self._histogram(
            "genesis_training_step_duration_seconds",
            "Time of an optimizer step: the mean over one statistics interval",
            STEP_SECONDS,
        )
        self._run_seconds = self._histogram(
            "genesis_training_duration_seconds", "Time a run spent in training", TRAINING_SECONDS
        )
        self._cuda_memory = self._gauge(
            "genesis_cuda_memory_allocated_bytes", "Peak GPU memory of the last steps", "agent"
        )
        self._checkpoint_seconds = self._histogram(
            "genesis_checkpoint_duration_seconds", "Time to write a checkpoint", CHECKPOINT_SECONDS
        )
        self._checkpoint_time = self._gauge(
            "genesis_last_checkpoint_timestamp_seconds", "Time of the last checkpoint", "agent"
        )
        self._checkpoint_bytes = self._gauge(
            "genesis_last_checkpoint_bytes", "Size of the last checkpoint", "agent"
        )

    def _declare_precision(self) -> None:
        self._fp16_steps = self._counter(
            "genesis_fp16_training_steps_total", "Optimizer steps attempted in FP16", "agent"
        )
        self._fp16_overflows = self._counter(
            "genesis_fp16_overflow_steps_total",
            "Steps in FP16 skipped since a gradient was not finite",
            "agent",
        )
        self._loss_scale = self._gauge(
            "genesis_fp16_loss_scale", "Loss scale in force; 1 outside FP16", "agent"
        )
        self._precision = self._gauge(
            "genesis_precision_info",
            "1 for the precision state that the agent's worker acknowledged last",
            "agent",
            "requested",
            "effective",
            "reason",
        )
        self._rollbacks = self._counter(
            "genesis_precision_rollbacks_total",
            "Times the acknowledged precision was lowered to FP32",
            "agent",
            "reason",
        )
        self._guard_trips = self._counter(
            "genesis_guard_trips_total", "Times the guard demanded FP32", "agent", "trigger"
        )
        self._guard_state = self._gauge(
            "genesis_guard_state", "1 for the guard's state of the agent", "agent", "state"
        )

    def _declare_runs(self) -> None:
        self._runs = self._counter("genesis_runs_total", "Runs that ended", "agent", "result")
        self._run_state = self._gauge(
            "genesis_run_state", "Unfinished runs in this state", "agent", "state"
        )
        self._resumes = self._counter(
            "genesis_run_resumes_total", "Attempts that went on from a checkpoint", "agent"
        )
        self._last_success = self._gauge(
            "genesis_last_success_timestamp_seconds", "End of the last successful run", "agent"
        )
        self._lag = self._gauge(
            "genesis_schedule_lag_seconds", "How late the schedule's last fire was noticed", "agent"
        )
        self._next_fire = self._gauge(
            "genesis_schedule_next_fire_timestamp_seconds", "When the agent is due next", "agent"
        )
        self._plugin_up = self._gauge("genesis_plugin_up", "0 for a quarantined plugin", "agent")

    def _declare_daemon(self) -> None:
        self._queue_depth = self._gauge("genesis_queue_depth", "Runs waiting for a slot")
        self._slots = self._gauge("genesis_slots", "Slots by state", "state")
        for state in ("busy", "free"):
            self._slots.labels(state)
        self._reload_success = self._gauge(
            "genesis_config_reload_success", "0 if the last change of the settings was refused"
        )
        self._reload_success.set(1)
        self._reloads = self._counter(
            "genesis_config_reloads_total", "Changes of the settings file, by result", "result"
        )
        for result in ("applied", "refused"):
            self._reloads.labels(result)
        self._tick = self._gauge(
            "genesis_loop_last_tick_timestamp_seconds", "When the daemon's loop last came round"
        )
        self._leader = self._gauge("genesis_leader", "1 while this daemon holds the lock")
        self._gauge(
            "genesis_build_info", "Version of the daemon and of Python", "version", "python"
        ).labels(genesis_fp16.__version__, platform.python_version()).set(1)

    def register_agent(self, name: str) -> None:
        """Create the series of an agent at 0; a second call changes nothing."""
        if name in self._agents:
            return
        self._agents.add(name)
        for metric in (
            *(self._nonfinite_loss, self._samples, self._fp16_steps, self._fp16_overflows),
            *(self._loss, self._grad_norm, self._loss_scale, self._cuda_memory),
            *(self._step_seconds, self._run_seconds, self._checkpoint_seconds),
            *(self._checkpoint_time, self._checkpoint_bytes, self._resumes),
            *(self._last_success, self._lag, self._next_fire),
        ):
            metric.labels(name)
        self._baseline.labels(name).set(math.nan)
        for outcome in STEP_OUTCOMES:
            self._steps.labels(name, outcome)
        for reason in ROLLBACK_REASONS:
            self._rollbacks.labels(name, reason)
        for trigger in Trigger:
            self._guard_trips.labels(name, trigger.value)
        self.set_guard_state(name, GuardState.WATCHING)
        for state in RunState:
            (self._runs if state in TERMINAL else self._run_state).labels(name, state.value)

    def on_event(self, agent: str, run_id: str, event: Event) -> None:
        """Take in what a worker said."""
        self.register_agent(agent)
        if isinstance(event, StepStats):
            self._count_steps(agent, run_id, event)
        elif isinstance(event, PrecisionChanged):
            self._acknowledge(agent, event)
        elif isinstance(event, Evaluated) and event.fp32_baseline_loss is not None:
            self._baseline.labels(agent).set(event.fp32_baseline_loss)
        elif isinstance(event, CheckpointSaved):
            self._checkpoint_seconds.labels(agent).observe(event.seconds, {"run_id": run_id})
            self._checkpoint_time.labels(agent).set(event.time)
            self._checkpoint_bytes.labels(agent).set(event.size_bytes)
        elif isinstance(event, Resumed):
            self._resumes.labels(agent).inc(exemplar={"run_id": run_id})

    def _count_steps(self, agent: str, run_id: str, event: StepStats) -> None:
        exemplar = {"run_id": run_id}
        for outcome in STEP_OUTCOMES:
            if count := getattr(event, outcome):
                self._steps.labels(agent, outcome).inc(count, exemplar)
        self._nonfinite_loss.labels(agent).inc(event.nonfinite_loss)
        self._samples.labels(agent).inc(event.samples)
        self._fp16_steps.labels(agent).inc(event.fp16)
        self._fp16_overflows.labels(agent).inc(min(event.overflow, event.fp16))
        self._loss_scale.labels(agent).set(event.loss_scale)
        if event.loss is not None:
            self._loss.labels(agent).set(event.loss)
        if event.grad_norm is not None:
            self._grad_norm.labels(agent).set(event.grad_norm)
        if event.cuda_memory_allocated_bytes is not None:
            self._cuda_memory.labels(agent).set(event.cuda_memory_allocated_bytes)
        self._training_seconds[run_id] += event.seconds
        step_seconds = self._step_seconds.labels(agent)
        for _ in range(event.attempted):
            step_seconds.observe(event.seconds / event.attempted, exemplar)

    def _acknowledge(self, agent: str, event: PrecisionChanged) -> None:
        before, state = self._acknowledged.get(agent), event.state
        self._loss_scale.labels(agent).set(event.loss_scale)
        if state == before:
            return
        if before is not None:
            self._precision.remove(agent, before.requested, before.effective, before.reason)
            lowered = before.effective != "fp32" and state.effective == "fp32"
            if lowered and state.reason != "measured":  # a better choice is no rollback
                self._rollbacks.labels(agent, state.reason).inc()
        self._precision.labels(agent, state.requested, state.effective, state.reason).set(1)
        self._acknowledged[agent] = state

    def set_guard_state(self, agent: str, state: GuardState) -> None:
        """Say how far the guard trusts *agent* with half precision."""
        for each in GuardState:
            self._guard_state.labels(agent, each.value).set(each is state)

    def guard_tripped(self, agent: str, trigger: Trigger) -> None:
        """Count that the guard demands FP32 for *agent*."""
        self._guard_trips.labels(agent, trigger.value).inc()

    def on_run_state(self, agent: str, run_id: str, state: str, result: str | None) -> None:
        """Take in that a run entered *state*; *result* is not needed here."""
        del result
        self.register_agent(agent)
        before = self._run_states.pop(run_id, None)
        if before is not None:
            self._run_state.labels(before[0], before[1].value).dec()
        current = RunState(state)
        if current not in TERMINAL:
            self._run_states[run_id] = (agent, current)
            self._run_state.labels(agent, current.value).inc()
            return
        self._runs.labels(agent, current.value).inc(exemplar={"run_id": run_id})
        if current is RunState.SUCCEEDED:
            self._last_success.labels(agent).set(self._clock())
        if seconds := self._training_seconds.pop(run_id, 0.0):
            self._run_seconds.labels(agent).observe(seconds, {"run_id": run_id})

    def set_plugin_up(self, name: str, up: bool) -> None:
        """Say whether the plugin is usable."""
        self._plugin_up.labels(name).set(up)

    def set_schedule_lag(self, name: str, seconds: float) -> None:
        """Say how late the agent's last fire was noticed."""
        self._lag.labels(name).set(seconds)

    def set_next_run(self, name: str, timestamp: float) -> None:
        """Say when the agent is due next, in Unix time."""
        self._next_fire.labels(name).set(timestamp)

    def set_queue(self, depth: int, slots_busy: int, slots_total: int) -> None:
        """Say how many runs wait and how many slots are in use."""
        self._queue_depth.set(depth)
        self._slots.labels("busy").set(slots_busy)
        self._slots.labels("free").set(max(0, slots_total - slots_busy))

    def config_reloaded(self, success: bool) -> None:
        """Count a change of the settings file, applied or refused."""
        self._reload_success.set(success)
        self._reloads.labels("applied" if success else "refused").inc()

    def loop_ticked(self, timestamp: float) -> None:
        """Note that the loop came round at *timestamp*, Unix time."""
        self.last_tick = timestamp
        self._tick.set(timestamp)

    def set_leader(self, leader: bool) -> None:
        """Say whether this daemon holds the lock."""
        self._leader.set(leader)
