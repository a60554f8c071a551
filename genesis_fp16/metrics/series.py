"""Name, help, type and labels of every metric: the only place that declares one.

Labels are the agent, bounded enums, and the parts of a job, which `EventLimits` bounds. Units are
base units. Series exist at 0 before their event, but those of parts. An agent's detailed series
exist from its first run in this daemon's life.
"""

from __future__ import annotations

import math
import platform
from functools import partial
from itertools import chain
from typing import get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text

import genesis_fp16
from genesis_fp16.domain.guard import Trigger
from genesis_fp16.domain.predictor import (
    DECISION_KINDS,
    OUTCOME_STATES,
    PREDICTION_OUTCOMES,
    PREDICTION_SECONDS,
)
from genesis_fp16.domain.run import TERMINAL, RunState
from genesis_fp16.metrics.family import CounterFamily, Family, GaugeFamily, HistogramFamily
from infrastructure.events.event import OverflowCause, RungCause
from infrastructure.events.precision_state import REASONS

CORRECTION_STATISTICS = ("dropped_fraction", "weight_mean", "sequence_ess")
STEP_OUTCOMES = ("applied", "overflow", "nonfinite_loss", "no_gradient")
OVERFLOW_CAUSES: tuple[str, ...] = get_args(OverflowCause)
RUNG_CAUSES: tuple[str, ...] = get_args(RungCause)
UNDERFLOW_KINDS = ("zero", "subnormal")
NOT_ROLLBACKS = (
    "default",
    "measured",
    "baseline",
    "canary",
    "device_unknown",
)  # FP32 is a choice here
ROLLBACK_REASONS = tuple(reason for reason in REASONS if reason not in NOT_ROLLBACKS)
PREDICTION_LOSSES = ("live", "expected", "held_out", "base_rate")
PRECISIONS = ("fp32", "fp16", "bf16")
STEP_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
TRAINING_SECONDS = (1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
CHECKPOINT_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)


class Series:
    """Every metric, registered; `Metrics` updates them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.families: list[Family] = []
        self._daemon = CollectorRegistry()
        self._declare_training()
        self._declare_precision()
        self._declare_parts()
        self._declare_telemetry()
        self._declare_mismatch()
        self._declare_runs()
        self._declare_predictions()
        self._declare_daemon()
        ProcessCollector(registry=self._daemon)
        registry.register(self._daemon)

    def text(self, *, openmetrics: bool) -> str:
        """Return all series as OpenMetrics or in the older text format.

        Safe to call in any thread. At 1,000 idle agents it takes about 0.05 s of CPU time.
        """
        families = (family.lines(openmetrics=openmetrics) for family in self.families)
        rest = openmetrics_text(self._daemon) if openmetrics else generate_latest(self._daemon)
        return "".join(chain.from_iterable(families)) + rest.decode()

    def create(self, agent: str) -> None:
        """Create the series that *agent* has before its first run, at 0.

        Every scrape carries them for every agent, so they are few. Counters of alerts on an
        increase are among them, since the first scrape of a run may come after its events.
        """
        self.nonfinite_loss.labels(agent)
        self.resumes.labels(agent)
        for reason in ROLLBACK_REASONS:
            self.rollbacks.labels(agent, reason)
        for state in RunState:
            (self.runs if state in TERMINAL else self.run_state).labels(agent, state.value)

    def create_details(self, agent: str) -> None:
        """Create the others at 0, or at NaN where 0 would look like a measurement."""
        for counter in (self.samples, self.fp16_steps, self.fp16_overflows):
            counter.labels(agent)
        for gauge in (
            *(self.loss, self.grad_norm, self.loss_scale, self.cuda_memory, self.lag),
            *(self.checkpoint_time, self.checkpoint_bytes, self.last_success),
        ):
            gauge.labels(agent)
        for histogram in (self.run_seconds, self.checkpoint_seconds):
            histogram.labels(agent)
        self.clear_comparison(agent)
        self.telemetry_seconds.labels(agent)
        self.stagnation.labels(agent).set(math.nan)
        self.clear_underflow(agent)
        for cause in OVERFLOW_CAUSES:
            self.overflow_diagnoses.labels(agent, cause)
        self.raised_modules.labels(agent)
        for cause in RUNG_CAUSES:
            self.rung_searches.labels(agent, cause)
        for precision in PRECISIONS:
            self.step_seconds.labels(agent, precision)
        for outcome in STEP_OUTCOMES:
            self.steps.labels(agent, outcome)
        for trigger in Trigger:
            self.guard_trips.labels(agent, trigger.value)

    def clear_comparison(self, agent: str) -> None:
        """Set the comparison with FP32 to NaN: none is being made."""
        losses = (self.fp32_baseline_loss, self.half_baseline_loss, self.half_loss_error)
        for measured in (*losses, self.half_gradient_error):
            measured.labels(agent).set(math.nan)
        for side in ("half", "fp32"):
            self.baseline_seconds.labels(agent, side).set(math.nan)

    def clear_underflow(self, agent: str) -> None:
        """Set the underflow to NaN: none is being measured."""
        for kind in UNDERFLOW_KINDS:
            self.underflow.labels(agent, kind).set(math.nan)

    # Each metric that these three make belongs to an agent, whose name is its first label.

    def _counter(self, name: str, text: str, *labels: str) -> CounterFamily:
        family = CounterFamily(name, text, ("agent", *labels), registry=self._registry)
        self.families.append(family)
        return family

    def _gauge(self, name: str, text: str, *labels: str) -> GaugeFamily:
        family = GaugeFamily(name, text, ("agent", *labels), registry=self._registry)
        self.families.append(family)
        return family

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> HistogramFamily:
        names = ("agent", *labels)
        family = HistogramFamily(name, text, names, buckets=buckets, registry=self._registry)
        self.families.append(family)
        return family

    def _declare_training(self) -> None:
        self.steps = self._counter(
            "genesis_training_steps_total",
            "Optimizer steps attempted in every precision, by outcome",
            "outcome",
        )
        self.nonfinite_loss = self._counter(
            "genesis_nonfinite_loss_total", "Steps skipped because the loss was NaN or infinite"
        )
        self.samples = self._counter("genesis_training_samples_total", "Training samples seen")
        self.loss = self._gauge("genesis_training_loss", "Mean loss of the last steps")
        self.grad_norm = self._gauge(
            "genesis_training_grad_norm", "Last finite gradient norm, unscaled, before clipping"
        )
        self.step_seconds = self._histogram(
            "genesis_training_step_duration_seconds",
            "Time of an optimizer step: the mean over one statistics interval",
            STEP_SECONDS,
            "precision",
        )
        self.run_seconds = self._histogram(
            "genesis_training_duration_seconds", "Time a run spent in training", TRAINING_SECONDS
        )
        self.cuda_memory = self._gauge(
            "genesis_cuda_memory_allocated_bytes", "Peak GPU memory of the last steps"
        )
        self.checkpoint_seconds = self._histogram(
            "genesis_checkpoint_duration_seconds", "Time to write a checkpoint", CHECKPOINT_SECONDS
        )
        self.checkpoint_time = self._gauge(
            "genesis_last_checkpoint_timestamp_seconds", "Time of the last checkpoint"
        )
        self.checkpoint_bytes = self._gauge(
            "genesis_last_checkpoint_bytes", "Size of the last checkpoint"
        )

    def _declare_precision(self) -> None:
        self.fp16_steps = self._counter(
            "genesis_fp16_training_steps_total", "Optimizer steps attempted in FP16"
        )
        self.fp16_overflows = self._counter(
            "genesis_fp16_overflow_steps_total",
            "Steps in FP16 skipped because a gradient was not finite",
        )
        self.loss_scale = self._gauge(
            "genesis_fp16_loss_scale", "Loss scale in force; 1 outside FP16"
        )
        self.precision = self._gauge(
            "genesis_precision_info",
            "1 for the precision state that the agent's worker last acknowledged",
            "requested",
            "effective",
            "reason",
        )
        self.role_precision = self._gauge(
            "genesis_role_precision_info",
            "1 for the types of a role that the agent's worker last acknowledged; only where a job "
            "has several roles",
            *("role", "store", "compute", "out"),
        )
        self.raised_modules = self._gauge(
            "genesis_raised_modules",
            "Modules that the guard has raised to FP32, and parts of the job to which it has given "
            "another precision, while the rest computes in half precision, as the agent's worker "
            "last acknowledged",
        )
        self.rung_searches = self._counter(
            "genesis_rung_searches_total",
            "Searches, after a trip, for the modules that must be in FP32, by what is to blame",
            "cause",
        )
        self.rollbacks = self._counter(
            "genesis_precision_rollbacks_total",
            "Times the acknowledged precision was lowered to FP32",
            "reason",
        )
        self.fp32_baseline_loss = self._gauge(
            "genesis_fp32_baseline_loss",
            "Loss of one frozen batch computed in FP32; NaN until measured",
        )
        self.half_baseline_loss = self._gauge(
            "genesis_half_baseline_loss",
            "Loss of the same batch under the same weights in half precision; NaN until measured",
        )
        self.half_loss_error = self._gauge(
            "genesis_half_loss_error_ratio",
            "Difference of that half loss from FP32's, divided by FP32's loss or, if larger, by a "
            "hundredth of the run's largest; the guard uses it; NaN until measured",
        )
        self.half_gradient_error = self._gauge(
            "genesis_half_gradient_error_ratio",
            "Length of the difference between that batch's half gradient and FP32's, divided by "
            "the length of FP32's; NaN until measured",
        )
        self.baseline_seconds = self._gauge(
            "genesis_baseline_pass_seconds",
            "Time of the forward and backward pass of that batch; NaN until measured",
            "precision",
        )
        self.guard_trips = self._counter(
            "genesis_guard_trips_total", "Times the guard changed an agent's precision", "trigger"
        )
        self.guard_state = self._gauge(
            "genesis_guard_state", "1 for the guard's current state for the agent", "state"
        )

    def _declare_parts(self) -> None:
        """Series of jobs with several parts; they do not exist for others."""
        self.part_steps = self._counter(
            "genesis_part_steps_total", "Optimizer steps of the part", "part"
        )
        self.part_overflows = self._counter(
            "genesis_part_overflow_steps_total", "Overflows of the part", "part"
        )
        self.part_loss_scale = self._gauge(
            "genesis_part_loss_scale", "Loss scale of the part", "part"
        )
        self.part_loss = self._gauge("genesis_part_loss", "Mean loss of the part", "part")
        self.part_grad_norm = self._gauge(
            "genesis_part_grad_norm", "Last finite gradient norm of the part", "part"
        )

    def remove_part(self, agent: str, part: str) -> None:
        """Remove the series of a part that the agent's job no longer has."""
        counters = self.part_steps, self.part_overflows
        for family in (*counters, self.part_loss_scale, self.part_loss, self.part_grad_norm):
            family.remove(agent, part)

    def _declare_telemetry(self) -> None:
        """Series of the steps that the worker repeats."""
        self.overflow_diagnoses = self._counter(
            "genesis_overflow_diagnoses_total",
            "Times a step that overflowed was repeated, by the cause that was found",
            "cause",
        )
        self.underflow = self._gauge(
            "genesis_gradient_underflow_ratio",
            "Share of a gradient's elements that are zero, or subnormal, only because of half "
            "precision; NaN until measured and in FP32",
            "kind",
        )
        self.stagnation = self._gauge(
            "genesis_update_stagnation_ratio",
            "Share of the weights with a gradient that a step left unchanged; NaN until measured",
        )
        self.telemetry_seconds = self._counter(
            "genesis_telemetry_seconds_total", "Time spent on repeating steps to measure them"
        )

    def _declare_mismatch(self) -> None:
        """Series of jobs that sample with one role and train with another."""
        self.mismatch_samples = self._counter(
            "genesis_mismatch_samples_total",
            "Times the log-probabilities of two roles were compared on the same tokens",
            "pair",
        )
        self.mismatch_seconds = self._counter(
            "genesis_mismatch_seconds_total", "Time spent on these comparisons", "pair"
        )
        self.mismatch_kl = self._gauge(
            "genesis_mismatch_kl",
            "Estimates of the KL divergence between the pair in nats per token; k1 may be negative",
            "pair",
            "estimator",
        )
        self.mismatch_floor = self._gauge(
            "genesis_mismatch_floor_kl",
            "k3 of the same tokens with both roles in FP32; NaN if not measured",
            "pair",
        )
        self.mismatch_excess = self._gauge(
            "genesis_mismatch_excess_kl",
            "k3 above that floor: the part that rounding causes; the guard uses it",
            "pair",
        )
        self.mismatch_difference = self._gauge(
            "genesis_mismatch_probability_difference",
            "Difference of the two probabilities of a sampled token, 0 to 1",
            "pair",
            "statistic",
        )
        self.mismatch_correlation = self._gauge(
            "genesis_mismatch_correlation",
            "Pearson correlation of the two probabilities over the tokens; NaN if undefined",
            "pair",
        )
        self.mismatch_chi2 = self._gauge(
            "genesis_mismatch_chi2",
            "Estimate of the chi-squared divergence between the pair",
            "pair",
            "level",
        )
        self.mismatch_sample_ratio = self._gauge(
            "genesis_mismatch_effective_sample_ratio",
            "Share of the sequences that importance weights leave, 0 to 1",
            "pair",
        )
        self.mismatch_slope = self._gauge(
            "genesis_mismatch_slope",
            "Change of a sequence's summed log-ratio by token of length; NaN if undefined",
            "pair",
        )

        self.correction = self._gauge(
            "genesis_policy_correction_ratio",
            "Of the last round before an evaluation: share of the tokens that the correction "
            "dropped, mean weight of the tokens, effective share of the sequences before it",
            "statistic",
        )

    def _declare_runs(self) -> None:
        self.runs = self._counter("genesis_runs_total", "Runs that ended", "result")
        self.run_state = self._gauge("genesis_run_state", "Unfinished runs in this state", "state")
        self.resumes = self._counter(
            "genesis_run_resumes_total", "Attempts that resumed from a checkpoint"
        )
        self.last_success = self._gauge(
            "genesis_last_success_timestamp_seconds", "End of the last successful run"
        )
        self.lag = self._gauge(
            "genesis_schedule_lag_seconds", "How late the last scheduled run was noticed"
        )
        self.period = self._gauge(
            "genesis_schedule_period_seconds", "Longest gap between the next scheduled runs"
        )
        self.next_fire = self._gauge(
            "genesis_schedule_next_fire_timestamp_seconds", "When the agent's next run is due"
        )
        self.paused = self._gauge(
            "genesis_agent_paused",
            "1 while a pause or a used-up quota keeps the agent idle",
        )
        self.plugin_up = self._gauge("genesis_plugin_up", "0 for a quarantined plugin")

    def _declare_predictions(self) -> None:
        """Series of agents that ask the predictor; they do not exist for others."""
        self.predictions = self._counter(
            "genesis_predictions_total", "Requests to predict, rank or decide", "outcome"
        )
        self.prediction_seconds = self._histogram(
            "genesis_prediction_seconds",
            "Time of the predictor to answer such a request",
            PREDICTION_SECONDS,
        )
        self.decisions = self._counter(
            "genesis_decisions_total", "Decisions, own choices and transitions recorded", "kind"
        )
        self.outcomes = self._counter(
            "genesis_outcomes_total", "Reports of what came of decisions", "state"
        )

        self.prediction_log_loss = self._gauge(
            "genesis_prediction_log_loss",
            "Mean log loss of predictions in nats: of the last outcomes (live), what these are "
            "held to (expected), of the groups held out before the publication (held_out), and of "
            "the base rate on these groups (base_rate)",
            "of",
        )
        self.calibration_error = self._gauge(
            "genesis_prediction_calibration_error",
            "Mean gap between predicted and observed success of the last outcomes",
        )
        self.interval_coverage = self._gauge(
            "genesis_prediction_interval_coverage_ratio",
            "Share of the last outcomes within their 90 % intervals",
        )
        self.input_drift = self._gauge(
            "genesis_prediction_input_drift",
            "Largest shift of a number among recent inputs, in standard deviations of the training",
        )
        self.prediction_gain = self._gauge(
            "genesis_prediction_gain",
            "Off-policy estimate of the reward of the model's choices above the agent's own order; "
            "NaN where decisions do not explore enough",
        )
        self.model_evidence = self._gauge(
            "genesis_model_guard_evidence",
            "Evidence that predictions became worse, as a share of what takes a model back",
        )
        self.models_taken_back = self._counter(
            "genesis_models_taken_back_total", "Models that the guard took out of use"
        )

    def create_judged(self, agent: str) -> None:
        """Create the series of an agent whose predictions are compared with outcomes."""
        for kind in PREDICTION_LOSSES:
            self.prediction_log_loss.labels(agent, kind).set(math.nan)
        for gauge in (
            *(self.calibration_error, self.interval_coverage, self.input_drift),
            *(self.prediction_gain, self.model_evidence),
        ):
            gauge.labels(agent).set(math.nan)

    def create_predictions(self, agent: str) -> None:
        """Create the series of an agent that asks, at 0."""
        for outcome in PREDICTION_OUTCOMES:
            self.predictions.labels(agent, outcome)
        self.prediction_seconds.labels(agent)
        for kind in DECISION_KINDS:
            self.decisions.labels(agent, kind)
        for state in OUTCOME_STATES:
            self.outcomes.labels(agent, state)
        self.models_taken_back.labels(agent)

    def _declare_daemon(self) -> None:
        counter = partial(Counter, registry=self._daemon)
        gauge = partial(Gauge, registry=self._daemon)
        self.queue_depth = gauge("genesis_queue_depth", "Runs waiting for a slot")
        self.slots = gauge("genesis_slots", "Slots by state", ["state"])
        for state in ("busy", "free"):
            self.slots.labels(state)
        self.engine_trouble = gauge(
            "genesis_engine_trouble_seconds",
            "How long the cluster has refused jobs or not answered; 0 if it does neither",
        )
        self.reload_success = gauge(
            "genesis_config_reload_success", "0 if the last change of the settings was refused"
        )
        self.reload_success.set(1)
        self.reloads = counter(
            "genesis_config_reloads_total", "Changes of the settings file, by result", ["result"]
        )
        for result in ("applied", "refused"):
            self.reloads.labels(result)
        self.unknown_settings = gauge(
            "genesis_unknown_settings", "Names with our prefix that are set but are not settings"
        )
        self.tick = gauge(
            "genesis_loop_last_tick_timestamp_seconds", "When the daemon's loop last began a round"
        )
        self.rounds_failed = counter(
            "genesis_rounds_failed_total", "Rounds of the loop that ended in an unexpected error"
        )
        self.scrapes_failed = counter(
            "genesis_scrapes_failed_total", "Scrapes answered with an error instead of metrics"
        )
        self.store_up = gauge("genesis_store_up", "0 while the database cannot be read or written")
        self.store_up.set(1)
        self.home_free = gauge(
            "genesis_home_free_bytes",
            "Free space on the file system of GENESIS_HOME; NaN if unknown",
        )
        self.home_size = gauge("genesis_home_size_bytes", "Size of the file system of GENESIS_HOME")
        self.leader = gauge("genesis_leader", "1 while this daemon holds the lock")
        gauge(
            "genesis_build_info", "Version of the daemon and of Python", ["version", "python"]
        ).labels(genesis_fp16.__version__, platform.python_version()).set(1)
