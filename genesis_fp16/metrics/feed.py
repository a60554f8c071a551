"""Updates the metrics from the events of workers, the states of runs and the daemon's loop.

The identity of a run is an exemplar, never a label. The series of an agent's runs and rollbacks
exist at 0 once the agent is known; its detailed series exist from its first run in this daemon's
life, so that 1,000 idle agents stay cheap to scrape.
"""

from __future__ import annotations

import math
import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry, disable_created_metrics

from genesis_fp16.domain.guard import GuardState, Trigger
from genesis_fp16.domain.model_reading import ModelReading
from genesis_fp16.domain.predictor import (
    DECISION_KINDS,
    OUTCOME_STATES,
    PREDICTION_OUTCOMES,
    AgentFigures,
)
from genesis_fp16.domain.run import ACTIVE, TERMINAL, RunState
from genesis_fp16.domain.telemetry import exemplar_of
from genesis_fp16.metrics.series import (
    CORRECTION_STATISTICS,
    NOT_ROLLBACKS,
    PREDICTION_LOSSES,
    STEP_OUTCOMES,
    UNDERFLOW_KINDS,
    Series,
)
from infrastructure.events import Event, PrecisionState
from infrastructure.events.event import (
    BaselineCompared,
    CheckpointSaved,
    Evaluated,
    LostUpdatesMeasured,
    MismatchMeasured,
    OverflowDiagnosed,
    PrecisionChanged,
    Resumed,
    RungSearched,
    StepStats,
)
from infrastructure.events.mismatch_report import MismatchReport, ReferenceReport


class Metrics:
    """The daemon's metrics; an `EventListener` of the dispatcher.

    Args:
        registry: Registry of the metrics; a new one by default.
        clock: Unix time in seconds.

    Attributes:
        last_tick: Monotonic seconds at which the loop's last round began; 0 before the first.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        disable_created_metrics()  # else every counter has a second series
        self.registry = CollectorRegistry() if registry is None else registry
        self.last_tick = 0.0
        self._clock = clock
        self._agents: set[str] = set()
        self._detailed: set[str] = set()  # agents
        self._asking: set[str] = set()  # agents that have asked the predictor
        self._judged: set[str] = set()  # agents whose predictions were compared with outcomes
        self._guarded: set[str] = set()  # agents whose guard's state is shown
        self._paused: set[str] = set()  # agents that were ever shown as paused
        self._run_states: dict[str, tuple[str, RunState]] = {}
        self._training_seconds: defaultdict[str, float] = defaultdict(float)
        self._acknowledged: dict[str, PrecisionState] = {}
        self._parts: dict[str, set[str]] = {}  # names of the parts shown, by agent
        self._compared: dict[str, str] = {}  # agent to its run that was compared with FP32
        self._series = Series(self.registry)

    def register_agent(self, name: str) -> None:
        """Create an agent's series at 0 but for the detailed; a second call changes nothing."""
        if name not in self._agents:
            self._agents.add(name)
            self._series.create(name)

    def _show_details(self, agent: str) -> None:
        self.register_agent(agent)
        if agent not in self._detailed:
            self._detailed.add(agent)
            self._series.create_details(agent)
            if agent not in self._guarded:
                self._show_guard_state(agent, GuardState.WATCHING)

    def render(self, *, openmetrics: bool) -> bytes:
        """Return all metrics as OpenMetrics or in the older text format; safe in any thread."""
        return self._series.text(openmetrics=openmetrics).encode()

    def on_event(self, agent: str, run_id: str, event: Event) -> None:
        """Update the metrics by an event of a worker."""
        self._show_details(agent)
        if isinstance(event, StepStats):
            self._count_steps(agent, run_id, event)
        elif isinstance(event, PrecisionChanged):
            self._acknowledge(agent, event)
        elif isinstance(event, BaselineCompared):
            self._compared[agent] = run_id
            self._compare(agent, event)
        elif isinstance(event, OverflowDiagnosed | RungSearched):
            self._count_diagnosis(agent, run_id, event)
        elif isinstance(event, LostUpdatesMeasured):
            self._show_lost_updates(agent, event)
        elif isinstance(event, MismatchMeasured):
            self._show_mismatch(agent, event)
        elif isinstance(event, Evaluated):
            self._show_evaluation(agent, run_id, event)
        elif isinstance(event, CheckpointSaved):
            series = self._series
            series.checkpoint_seconds.labels(agent).observe(event.seconds, exemplar_of(run_id))
            series.checkpoint_time.labels(agent).set(event.time)
            series.checkpoint_bytes.labels(agent).set(event.size_bytes)
        elif isinstance(event, Resumed):
            self._series.resumes.labels(agent).inc(exemplar=exemplar_of(run_id))

    def _count_diagnosis(
        self, agent: str, run_id: str, event: OverflowDiagnosed | RungSearched
    ) -> None:
        if isinstance(event, RungSearched):  # in a process of its own: no step waited for it
            self._series.rung_searches.labels(agent, event.cause).inc(1, exemplar_of(run_id))
            return
        self._series.overflow_diagnoses.labels(agent, event.cause).inc(1, exemplar_of(run_id))
        self._series.telemetry_seconds.labels(agent).inc(event.seconds)

    def on_predictions(self, agent: str, figures: AgentFigures) -> None:
        """Add what a predictor has counted; labels that it should not have are left out."""
        series = self._series
        if agent not in self._asking:
            self._asking.add(agent)
            series.create_predictions(agent)
        counted = (
            (series.predictions, PREDICTION_OUTCOMES, figures.predictions),
            (series.decisions, DECISION_KINDS, figures.decisions),
            (series.outcomes, OUTCOME_STATES, figures.outcomes),
        )
        for family, labels, counts in counted:
            for label in labels:
                family.labels(agent, label).inc(max(0, counts.get(label, 0)))
        series.prediction_seconds.labels(agent).add(figures.seconds, figures.seconds_sum)

    def show_model(self, agent: str, reading: ModelReading) -> None:
        """Show how an agent's model stands against what came true."""
        series = self._series
        if agent not in self._judged:
            self._judged.add(agent)
            series.create_judged(agent)
        held_out, expected = reading.held_out_loss, reading.expected_loss
        expected = held_out if expected is None else expected
        losses = (reading.log_loss, expected, held_out, reading.base_rate_loss)
        for kind, loss in zip(PREDICTION_LOSSES, losses, strict=True):
            series.prediction_log_loss.labels(agent, kind).set(loss)
        for gauge, value in (
            (series.calibration_error, reading.calibration_error),
            (series.interval_coverage, reading.coverage),
            (series.input_drift, reading.input_drift),
            (series.prediction_gain, reading.gain),
            (series.model_evidence, reading.evidence),
        ):
            gauge.labels(agent).set(_number(value))

    def model_taken_back(self, agent: str) -> None:
        """Count a model that the guard took out of use; what it showed is shown no longer."""
        self._series.models_taken_back.labels(agent).inc()
        self._series.create_judged(agent)

    def _count_steps(self, agent: str, run_id: str, event: StepStats) -> None:
        series, exemplar = self._series, exemplar_of(run_id)
        for outcome in STEP_OUTCOMES:
            if count := getattr(event, outcome):
                series.steps.labels(agent, outcome).inc(count, exemplar)
        series.nonfinite_loss.labels(agent).inc(event.nonfinite_loss)
        series.samples.labels(agent).inc(event.samples)
        series.fp16_steps.labels(agent).inc(event.fp16)
        series.fp16_overflows.labels(agent).inc(min(event.overflow, event.fp16))
        series.loss_scale.labels(agent).set(event.loss_scale)
        if event.loss is not None:
            series.loss.labels(agent).set(event.loss)
        if event.grad_norm is not None:
            series.grad_norm.labels(agent).set(event.grad_norm)
        if event.cuda_memory_allocated_bytes is not None:
            series.cuda_memory.labels(agent).set(event.cuda_memory_allocated_bytes)
        self._training_seconds[run_id] += event.seconds
        if attempted := event.attempted:
            step_seconds = series.step_seconds.labels(agent, event.precision)
            step_seconds.observe(event.seconds / attempted, exemplar, times=attempted)
        if event.parts or agent in self._parts:
            self._count_parts(agent, run_id, event)

    def _count_parts(self, agent: str, run_id: str, event: StepStats) -> None:
        series, exemplar = self._series, exemplar_of(run_id)
        shown = {part.name for part in event.parts}
        for gone in self._parts.get(agent, set()) - shown:
            series.remove_part(agent, gone)
        self._parts[agent] = shown
        for part in event.parts:
            labels = agent, part.name
            series.part_steps.labels(*labels).inc(part.attempted, exemplar)
            series.part_overflows.labels(*labels).inc(part.overflow, exemplar)
            series.part_loss_scale.labels(*labels).set(part.loss_scale)
            if part.loss is not None:
                series.part_loss.labels(*labels).set(part.loss)
            if part.grad_norm is not None:
                series.part_grad_norm.labels(*labels).set(part.grad_norm)

    def _compare(self, agent: str, event: BaselineCompared) -> None:
        series = self._series
        series.fp32_baseline_loss.labels(agent).set(event.fp32_loss)
        error = event.gradient_error if event.comparable else None
        loss = event.loss if event.comparable else math.nan
        series.half_baseline_loss.labels(agent).set(loss)
        series.half_loss_error.labels(agent).set(event.loss_error)
        series.half_gradient_error.labels(agent).set(math.nan if error is None else error)
        if event.seconds is not None and event.fp32_seconds is not None:
            series.baseline_seconds.labels(agent, "half").set(event.seconds)
            series.baseline_seconds.labels(agent, "fp32").set(event.fp32_seconds)

    def _show_lost_updates(self, agent: str, event: LostUpdatesMeasured) -> None:
        series = self._series
        series.telemetry_seconds.labels(agent).inc(event.seconds)
        for kind in UNDERFLOW_KINDS:
            series.underflow.labels(agent, kind).set(_number(getattr(event, kind)))
        if event.stagnation is not None:  # a skipped step says nothing
            series.stagnation.labels(agent).set(event.stagnation)

    def _show_evaluation(self, agent: str, run_id: str, event: Evaluated) -> None:
        for statistic in CORRECTION_STATISTICS:
            if (value := event.metrics.get(f"correction_{statistic}")) is not None:
                self._series.correction.labels(agent, statistic).set(value)
        if event.fp32_baseline_loss is not None and self._compared.get(agent) != run_id:
            self._series.clear_comparison(agent)  # its losses would be of different moments
            self._series.fp32_baseline_loss.labels(agent).set(event.fp32_baseline_loss)

    def _show_mismatch(self, agent: str, event: MismatchMeasured) -> None:
        self._show_pair(agent, "policy_rollout", event.report)
        if event.reference is not None:
            self._show_pair(agent, "reference_fp32", event.reference)

    def _show_pair(self, agent: str, pair: str, report: MismatchReport | ReferenceReport) -> None:
        series, labels = self._series, (agent, pair)
        series.mismatch_samples.labels(*labels).inc()
        series.mismatch_seconds.labels(*labels).inc(report.seconds)
        for estimator, value in (("k1", report.k1), ("k2", report.k2), ("k3", report.k3)):
            series.mismatch_kl.labels(*labels, estimator).set(value)
        series.mismatch_floor.labels(*labels).set(report.floor_k3)
        series.mismatch_excess.labels(*labels).set(report.excess_k3)
        series.mismatch_difference.labels(*labels, "mean").set(report.mean_difference)
        series.mismatch_difference.labels(*labels, "max").set(report.max_difference)
        series.mismatch_correlation.labels(*labels).set(report.pearson)
        series.mismatch_chi2.labels(*labels, "token").set(report.chi2_token)
        series.mismatch_chi2.labels(*labels, "sequence").set(report.chi2_sequence)
        series.mismatch_sample_ratio.labels(*labels).set(report.effective_sample_size)
        series.mismatch_slope.labels(*labels).set(report.slope)

    def _acknowledge(self, agent: str, event: PrecisionChanged) -> None:
        before, state = self._acknowledged.get(agent), event.state
        self._series.loss_scale.labels(agent).set(event.loss_scale)
        if state == before:
            return
        if before is not None:
            self._series.precision.remove(agent, before.requested, before.effective, before.reason)
            for role, types in before.roles.items():
                self._series.role_precision.remove(agent, role, *types.split("/"))
            lowered = before.effective != "fp32" and state.effective == "fp32"
            if lowered and state.reason not in NOT_ROLLBACKS:
                self._series.rollbacks.labels(agent, state.reason).inc()
        if state.effective == "fp32":  # nothing is compared in FP32
            self._compared.pop(agent, None)
            self._series.clear_comparison(agent)
            self._series.clear_underflow(agent)
        self._series.precision.labels(agent, state.requested, state.effective, state.reason).set(1)
        changed = len(state.modules) + len(state.parts)
        self._series.raised_modules.labels(agent).set(changed)
        for role, types in state.roles.items():
            self._series.role_precision.labels(agent, role, *types.split("/")).set(1)
        self._acknowledged[agent] = state

    def set_guard_state(self, agent: str, state: GuardState) -> None:
        """Set the guard's state for *agent*; that of an idle agent is shown if it is noteworthy."""
        if state is not GuardState.WATCHING or agent in self._detailed | self._guarded:
            self._show_guard_state(agent, state)

    def _show_guard_state(self, agent: str, state: GuardState) -> None:
        self._guarded.add(agent)
        for possible in GuardState:
            self._series.guard_state.labels(agent, possible.value).set(possible is state)

    def guard_tripped(self, agent: str, trigger: Trigger) -> None:
        """Count a trip of the guard for *agent*."""
        self._series.guard_trips.labels(agent, trigger.value).inc()

    def on_run_state(self, agent: str, run_id: str, state: RunState) -> None:
        """Update the metrics by a run's new *state*."""
        (self._show_details if state in ACTIVE else self.register_agent)(agent)
        before = self._run_states.pop(run_id, None)
        if before is not None:
            self._series.run_state.labels(*before).add(-1)
        if state not in TERMINAL:
            self._run_states[run_id] = (agent, state)
            self._series.run_state.labels(agent, state).add(1)
            return
        self._series.runs.labels(agent, state).inc(exemplar=exemplar_of(run_id))
        if state == RunState.SUCCEEDED:
            self.set_last_success(agent, self._clock())
        if seconds := self._training_seconds.pop(run_id, 0.0):
            self._series.run_seconds.labels(agent).observe(seconds, exemplar_of(run_id))

    def set_plugin_up(self, name: str, up: bool) -> None:
        """Set whether the plugin is usable."""
        self._series.plugin_up.labels(name).set(up)

    def forget_plugin(self, name: str) -> None:
        """Remove the series that speak of the agent's future: it was uninstalled."""
        series = self._series
        for family in (series.plugin_up, series.next_fire, series.period, series.lag):
            family.remove(name)
        if name in self._paused:
            self._paused.discard(name)
            series.paused.remove(name)

    def set_paused(self, name: str, paused: bool) -> None:
        """Set whether the agent is paused; an agent that never was has no such series."""
        if paused or name in self._paused:
            self._paused.add(name)
            self._series.paused.labels(name).set(paused)

    def set_last_success(self, name: str, timestamp: float) -> None:
        """Set when the agent's last successful run ended, in Unix time."""
        self._series.last_success.labels(name).set(timestamp)

    def set_schedule_lag(self, name: str, seconds: float) -> None:
        """Set how late the agent's last scheduled run was noticed."""
        self._series.lag.labels(name).set(seconds)

    def set_next_run(self, name: str, timestamp: float, period_seconds: float) -> None:
        """Set when the agent's next run is due, in Unix time, and the longest gap after it."""
        self._series.next_fire.labels(name).set(timestamp)
        self._series.period.labels(name).set(period_seconds)

    def set_queue(self, depth: int, slots_busy: int, slots_total: int) -> None:
        """Set how many runs wait and how many slots are in use."""
        self._series.queue_depth.set(depth)
        self._series.slots.labels("busy").set(slots_busy)
        self._series.slots.labels("free").set(max(0, slots_total - slots_busy))

    def set_engine_trouble(self, seconds: float) -> None:
        """Set for how long the cluster of the executor has refused jobs or not answered."""
        self._series.engine_trouble.set(seconds)

    def config_reloaded(self, success: bool) -> None:
        """Count a change of the settings file, applied or refused."""
        self._series.reload_success.set(success)
        self._series.reloads.labels("applied" if success else "refused").inc()

    def set_unknown_settings(self, count: int) -> None:
        """Set how many names with our prefix are ignored, because they are not settings."""
        self._series.unknown_settings.set(count)

    def loop_ticked(self, timestamp: float, now: float) -> None:
        """Record a round of the loop at *timestamp*, Unix time, and *now*, monotonic seconds."""
        self.last_tick = now
        self._series.tick.set(timestamp)

    def set_leader(self, leader: bool) -> None:
        """Set whether this daemon holds the lock."""
        self._series.leader.set(leader)

    def round_failed(self) -> None:
        """Count a round of the loop that ended in an unexpected error."""
        self._series.rounds_failed.inc()

    def scrape_failed(self) -> None:
        """Count a scrape that was answered with an error."""
        self._series.scrapes_failed.inc()

    def set_store_up(self, up: bool) -> None:
        """Set whether the store works."""
        self._series.store_up.set(up)

    def watch_home(self, home: Path) -> None:
        """Show the space on the file system of *home*, read at each scrape."""

        def space(kind: str) -> float:
            try:
                return float(getattr(shutil.disk_usage(home), kind))
            except OSError:
                return math.nan

        self._series.home_free.set_function(lambda: space("free"))
        self._series.home_size.set_function(lambda: space("total"))


def _number(value: float | None) -> float:
    return math.nan if value is None else value
