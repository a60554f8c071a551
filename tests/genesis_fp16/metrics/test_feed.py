"""Events and run states in, a scrape out."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from genesis_fp16.domain.guard import GuardState, Trigger
from genesis_fp16.domain.run import RunState
from genesis_fp16.domain.telemetry import exemplar_of
from genesis_fp16.metrics import Metrics
from infrastructure.events import Event, PrecisionState, Role
from infrastructure.events.event import (
    BaselineCompared,
    CheckpointSaved,
    Evaluated,
    LostUpdatesMeasured,
    MismatchMeasured,
    OverflowDiagnosed,
    PartStats,
    PrecisionChanged,
    Resumed,
    StepStats,
)
from infrastructure.events.mismatch_report import Combination, MismatchReport, ReferenceReport

FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")
BY_FLAG = PrecisionState(requested="fp16", effective="fp32", reason="flag")
BY_OPERATOR = PrecisionState(requested="fp16", effective="fp32", reason="operator")

PROMISED = [
    "genesis_fp16_training_steps_total",
    "genesis_fp16_overflow_steps_total",
    "genesis_fp16_loss_scale",
    "genesis_training_loss",
    "genesis_fp32_baseline_loss",
    "genesis_training_samples_total",
    "genesis_training_duration_seconds_bucket",
    "genesis_cuda_memory_allocated_bytes",
    "genesis_precision_rollbacks_total",
    "genesis_training_steps_total",
    "genesis_training_grad_norm",
    "genesis_training_step_duration_seconds_bucket",
    "genesis_nonfinite_loss_total",
    "genesis_runs_total",
    "genesis_run_state",
    "genesis_last_success_timestamp_seconds",
    "genesis_schedule_lag_seconds",
    "genesis_plugin_up",
    "genesis_config_reload_success",
    "genesis_loop_last_tick_timestamp_seconds",
    "genesis_leader",
    "genesis_build_info",
]


@pytest.fixture
def metrics() -> Metrics:
    metrics = Metrics(clock=lambda: 1000.0)
    metrics.register_agent("a")
    metrics.set_plugin_up("a", True)
    return metrics


@pytest.fixture
def value(metrics: Metrics) -> Callable[..., float | None]:
    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    return value


Value = Callable[..., float | None]


def stats(**changes: object) -> Event:
    defaults = {"step": 20, "loss_scale": 65536.0, "precision": "fp16"}
    return StepStats.model_validate({**defaults, **changes})


def changed(state: PrecisionState, scale: float = 65536.0) -> Event:
    return PrecisionChanged(step=1, state=state, loss_scale=scale)


def series(metrics: Metrics, name: str) -> list[dict[str, str]]:
    return [
        sample.labels
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
    ]


IDLE_BYTES = 1_600_000  # of a scrape at 1,000 agents that have not run yet


@pytest.mark.parametrize("openmetrics", [False, True])
def test_a_scrape_of_idle_agents_is_small(openmetrics: bool) -> None:
    """It was 9.6 MB."""
    metrics = Metrics()
    for number in range(1000):
        agent = f"agent-{number:04}"
        metrics.register_agent(agent)
        metrics.set_plugin_up(agent, True)
        metrics.set_guard_state(agent, GuardState.WATCHING)
        metrics.set_next_run(agent, 1.7e9 + number, 3600.0)
        metrics.set_last_success(agent, 1.7e9 + number)
    assert len(metrics.render(openmetrics=openmetrics)) < IDLE_BYTES


def test_a_scrape_is_what_the_library_renders_from_the_registry(metrics: Metrics) -> None:
    for agent in ("a", 'quoted"\\name'):
        metrics.on_run_state(agent, f"{agent}-1", RunState.STARTING)
        metrics.on_event(agent, "run-7", stats(applied=3, overflow=1, seconds=0.02, loss=0.5))
        metrics.on_event(agent, "run-7", changed(FP16))
        metrics.on_event(agent, "run-7", changed(BY_FLAG))
        metrics.on_run_state(agent, f"{agent}-1", RunState.SUCCEEDED)
        metrics.set_next_run(agent, 1.7e9, math.nan)
    of_process = re.compile(rb"^process_.*$", re.MULTILINE)  # they move
    for ours, theirs in (
        (metrics.render(openmetrics=False), generate_latest(metrics.registry)),
        (metrics.render(openmetrics=True), openmetrics(metrics.registry)),
    ):
        assert of_process.sub(b"", ours) == of_process.sub(b"", theirs)


def test_details_appear_at_zero_when_the_first_run_starts(metrics: Metrics, value: Value) -> None:
    details = {"genesis_training_samples_total", "genesis_fp16_training_steps_total"}
    metrics.on_run_state("a", "r", RunState.QUEUED)
    assert all(value(name, agent="a") is None for name in details)
    assert value("genesis_guard_state", agent="a", state="watching") is None
    assert value("genesis_nonfinite_loss_total", agent="a") == 0
    assert value("genesis_run_resumes_total", agent="a") == 0
    metrics.on_run_state("a", "r", RunState.STARTING)
    assert all(value(name, agent="a") == 0 for name in details)
    assert math.isnan(value("genesis_half_baseline_loss", agent="a") or 0)
    assert value("genesis_guard_state", agent="a", state="watching") == 1
    assert value("genesis_guard_trips_total", agent="a", trigger="underflow") == 0


def test_a_tripped_guard_of_an_idle_agent_is_shown(metrics: Metrics, value: Value) -> None:
    metrics.set_guard_state("a", GuardState.WATCHING)
    assert value("genesis_guard_state", agent="a", state="watching") is None
    metrics.set_guard_state("a", GuardState.TRIPPED)
    metrics.on_run_state("a", "r", RunState.STARTING)
    assert value("genesis_guard_state", agent="a", state="tripped") == 1
    metrics.set_guard_state("a", GuardState.WATCHING)
    assert value("genesis_guard_state", agent="a", state="tripped") == 0


def test_promised_series_exist_at_zero_before_the_first_step(metrics: Metrics) -> None:
    metrics.on_run_state("a", "r", RunState.STARTING)
    samples = {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
    }
    names = {name for name, _ in samples}
    assert [name for name in PROMISED if name not in names] == []
    assert [name for name in names if name.endswith("_created")] == []
    assert samples["genesis_training_steps_total", ("a", "overflow")] == 0
    assert samples["genesis_precision_rollbacks_total", ("a", "guard")] == 0
    assert samples["genesis_runs_total", ("a", "timed_out")] == 0
    assert math.isnan(samples["genesis_fp32_baseline_loss", ("a",)])


def test_registering_twice_resets_nothing(metrics: Metrics, value: Value) -> None:
    metrics.on_event("a", "r", Evaluated(epoch=1, metrics={}, primary="x", fp32_baseline_loss=0.5))
    metrics.register_agent("a")
    assert value("genesis_fp32_baseline_loss", agent="a") == 0.5


def test_steps_add_up(metrics: Metrics, value: Value) -> None:
    metrics.on_event(
        "a",
        "r",
        stats(
            applied=17,
            overflow=3,
            fp16=20,
            samples=640,
            seconds=2.0,
            loss=0.5,
            grad_norm=1.5,
            cuda_memory_allocated_bytes=7,
        ),
    )
    metrics.on_event(
        "a",
        "r",
        stats(
            applied=8,
            overflow=1,
            nonfinite_loss=1,
            samples=320,
            seconds=1.0,
            precision="fp32",
            loss_scale=1.0,
        ),
    )
    assert value("genesis_training_steps_total", agent="a", outcome="applied") == 25
    assert value("genesis_training_steps_total", agent="a", outcome="overflow") == 4
    assert value("genesis_fp16_training_steps_total", agent="a") == 20
    assert value("genesis_fp16_overflow_steps_total", agent="a") == 3
    assert value("genesis_nonfinite_loss_total", agent="a") == 1
    assert value("genesis_training_samples_total", agent="a") == 960
    assert value("genesis_fp16_loss_scale", agent="a") == 1.0
    assert value("genesis_training_loss", agent="a") == 0.5
    assert value("genesis_training_grad_norm", agent="a") == 1.5
    assert value("genesis_cuda_memory_allocated_bytes", agent="a") == 7
    name = "genesis_training_step_duration_seconds"
    for precision, count, total in (("fp16", 20, 2.0), ("fp32", 10, 1.0)):
        labels = {"agent": "a", "precision": precision}
        assert value(f"{name}_count", **labels) == count
        assert value(f"{name}_sum", **labels) == pytest.approx(total)
        assert value(f"{name}_bucket", **labels, le="0.1") == count
        assert value(f"{name}_bucket", **labels, le="0.05") == 0


def test_any_number_of_steps_is_counted_at_once(metrics: Metrics, value: Value) -> None:
    """30 million steps that one event claimed were 30 million observations, 194 seconds."""
    metrics.on_event("a", "r", stats(applied=3 * 10**15, seconds=3e13))
    labels = {"agent": "a", "precision": "fp16"}
    name = "genesis_training_step_duration_seconds"
    assert value(f"{name}_count", **labels) == 3 * 10**15
    assert value(f"{name}_sum", **labels) == pytest.approx(3e13)
    assert value(f"{name}_bucket", **labels, le="0.01") == 3 * 10**15
    assert value(f"{name}_bucket", **labels, le="0.005") == 0
    metrics.on_event("a", "r", stats(seconds=1.0))
    assert value(f"{name}_count", **labels) == 3 * 10**15, "no step, no observation"


def test_a_frozen_batch_is_compared(metrics: Metrics, value: Value) -> None:
    metrics.on_run_state("a", "r", RunState.STARTING)
    assert math.isnan(value("genesis_baseline_pass_seconds", agent="a", precision="half") or 0)
    compared = {"step": 9, "precision": "fp16", "loss_scale": 1024.0}
    metrics.on_event("a", "r", BaselineCompared(loss=0.52, fp32_loss=0.5, **compared))
    assert value("genesis_half_baseline_loss", agent="a") == 0.52
    assert value("genesis_half_loss_error_ratio", agent="a") == pytest.approx(0.04)
    assert value("genesis_fp32_baseline_loss", agent="a") == 0.5
    assert math.isnan(value("genesis_half_gradient_error_ratio", agent="a") or 0)
    times = {"seconds": 0.1, "fp32_seconds": 0.3, "gradient_error": 0.001}
    metrics.on_event("a", "r", BaselineCompared(loss=0.5, fp32_loss=0.5, **compared, **times))
    assert value("genesis_half_gradient_error_ratio", agent="a") == 0.001
    assert value("genesis_baseline_pass_seconds", agent="a", precision="half") == 0.1
    assert value("genesis_baseline_pass_seconds", agent="a", precision="fp32") == 0.3
    spoilt = BaselineCompared(loss=9.0, fp32_loss=0.4, comparable=False, **compared, **times)
    metrics.on_event("a", "r", spoilt)
    assert value("genesis_fp32_baseline_loss", agent="a") == 0.4
    assert math.isnan(value("genesis_half_baseline_loss", agent="a") or 0)
    assert math.isnan(value("genesis_half_loss_error_ratio", agent="a") or 0)
    assert math.isnan(value("genesis_half_gradient_error_ratio", agent="a") or 0)
    learnt = {"loss": 2e-5, "fp32_loss": 1e-5, "largest_fp32_loss": 0.5}
    metrics.on_event("a", "r", BaselineCompared(**learnt, **compared))
    assert value("genesis_half_loss_error_ratio", agent="a") == pytest.approx(0.002)


def test_overflow_causes_and_lost_updates_are_shown(metrics: Metrics, value: Value) -> None:
    metrics.on_run_state("a", "r", RunState.STARTING)
    causes = "genesis_overflow_diagnoses_total"
    assert value(causes, agent="a", cause="forward") == 0
    assert math.isnan(value("genesis_update_stagnation_ratio", agent="a") or 0)
    where = {"step": 9, "precision": "fp16", "loss_scale": 1024.0}
    overflow = {"overflows": 12, "cause": "forward", "module": "head (Linear)"}
    metrics.on_event("a", "r", OverflowDiagnosed(seconds=0.25, **where, **overflow))
    assert value(causes, agent="a", cause="forward") == 1
    assert value(causes, agent="a", cause="backward") == 0
    lost = {"zero": 0.25, "subnormal": 0.5, "stagnation": 0.125}
    metrics.on_event("a", "r", LostUpdatesMeasured(seconds=0.5, **where, **lost))
    underflow = "genesis_gradient_underflow_ratio"
    assert value(underflow, agent="a", kind="zero") == 0.25
    assert value(underflow, agent="a", kind="subnormal") == 0.5
    assert value("genesis_update_stagnation_ratio", agent="a") == 0.125
    assert value("genesis_telemetry_seconds_total", agent="a") == 0.75
    metrics.on_event("a", "r", LostUpdatesMeasured(seconds=0.25, **where))  # a skipped step
    assert value("genesis_update_stagnation_ratio", agent="a") == 0.125
    metrics.on_event("a", "r", LostUpdatesMeasured(seconds=0.0, **where, **lost))
    metrics.on_event("a", "r", changed(BY_FLAG, scale=1.0))
    for kind in ("zero", "subnormal"):
        assert math.isnan(value(underflow, agent="a", kind=kind) or 0)


def test_losses_of_different_moments_are_not_compared(metrics: Metrics, value: Value) -> None:
    compared = BaselineCompared(step=9, precision="fp16", loss_scale=1.0, loss=0.5, fp32_loss=0.5)
    evaluated = Evaluated(epoch=1, metrics={}, primary="x", fp32_baseline_loss=0.25)
    metrics.on_event("a", "r", compared)
    metrics.on_event("a", "r", evaluated)
    assert value("genesis_fp32_baseline_loss", agent="a") == 0.5
    metrics.on_event("a", "r2", evaluated)
    assert value("genesis_fp32_baseline_loss", agent="a") == 0.25
    assert math.isnan(value("genesis_half_baseline_loss", agent="a") or 0)


def test_in_fp32_no_comparison_is_shown(metrics: Metrics, value: Value) -> None:
    compared = {"step": 9, "precision": "fp16", "loss_scale": 1.0, "loss": 0.5, "fp32_loss": 0.5}
    times = {"seconds": 0.1, "fp32_seconds": 0.3, "gradient_error": 0.001}
    metrics.on_event("a", "r", BaselineCompared.model_validate(compared | times))
    metrics.on_event("a", "r", changed(BY_FLAG, scale=1.0))
    ratios = ("half_loss_error_ratio", "half_gradient_error_ratio")
    for name in ("half_baseline_loss", *ratios, "fp32_baseline_loss"):
        assert math.isnan(value(f"genesis_{name}", agent="a") or 0), name
    assert math.isnan(value("genesis_baseline_pass_seconds", agent="a", precision="half") or 0)
    metrics.on_event("a", "r", Evaluated(epoch=2, metrics={}, primary="x", fp32_baseline_loss=0.3))
    assert value("genesis_fp32_baseline_loss", agent="a") == 0.3


def test_space_is_read_at_each_scrape(metrics: Metrics, value: Value, tmp_path: Path) -> None:
    metrics.watch_home(tmp_path / "not there yet")
    assert math.isnan(value("genesis_home_free_bytes") or 0)
    (tmp_path / "not there yet").mkdir()
    assert 0 < (value("genesis_home_free_bytes") or 0) <= (value("genesis_home_size_bytes") or 0)


def test_precision_is_what_was_acknowledged_last(metrics: Metrics, value: Value) -> None:
    name = "genesis_precision_info"
    assert series(metrics, name) == []
    metrics.on_event("a", "r", changed(FP16))
    metrics.on_event("a", "r", changed(BY_FLAG, scale=1.0))
    assert series(metrics, name) == [
        {"agent": "a", "requested": "fp16", "effective": "fp32", "reason": "flag"}
    ]
    assert value("genesis_precision_rollbacks_total", agent="a", reason="flag") == 1
    assert value("genesis_fp16_loss_scale", agent="a") == 1.0
    metrics.on_event("a", "r", changed(BY_OPERATOR, scale=1.0))
    metrics.on_event("a", "r2", changed(FP16))
    metrics.on_event("a", "r2", changed(FP16))
    assert len(series(metrics, name)) == 1
    assert value(name, agent="a", requested="fp16", effective="fp16", reason="default") == 1
    assert value("genesis_precision_rollbacks_total", agent="a", reason="operator") == 0
    measured = PrecisionState(requested="auto", effective="fp32", reason="measured")
    metrics.on_event("a", "r3", changed(measured, scale=1.0))
    assert value(name, agent="a", requested="auto", effective="fp32", reason="measured") == 1
    assert value("genesis_precision_rollbacks_total", agent="a", reason="measured") is None
    metrics.on_event("a", "r4", changed(FP16))
    twin = PrecisionState(requested="fp16", effective="fp32", reason="baseline")
    metrics.on_event("a", "r5", changed(twin, scale=1.0))
    assert value(name, agent="a", requested="fp16", effective="fp32", reason="baseline") == 1
    assert value("genesis_precision_rollbacks_total", agent="a", reason="baseline") is None


def test_roles_show_the_types_acknowledged_last(metrics: Metrics) -> None:
    name = "genesis_role_precision_info"
    metrics.on_event("a", "r", changed(FP16))
    assert series(metrics, name) == []
    roles = {Role.POLICY: "fp32/fp16/fp32", Role.ROLLOUT: "fp16/fp16/fp32"}
    metrics.on_event("a", "r", changed(replace(FP16, roles=roles)))
    by_guard = {**roles, Role.ROLLOUT: "fp32/fp32/fp32"}
    metrics.on_event("a", "r", changed(replace(FP16, roles=by_guard)))
    types = {
        labels["role"]: (labels["store"], labels["compute"], labels["out"])
        for labels in series(metrics, name)
    }
    assert types == {"policy": ("fp32", "fp16", "fp32"), "rollout": ("fp32", "fp32", "fp32")}
    assert len(series(metrics, "genesis_precision_info")) == 1
    metrics.on_event("a", "r2", changed(BY_FLAG, scale=1.0))
    assert series(metrics, name) == []


def test_parts_show_their_steps_and_go_with_the_job_that_had_them(
    metrics: Metrics, value: Value
) -> None:
    names = {f"genesis_part_{name}" for name in ("loss_scale", "loss", "grad_norm")}
    names |= {"genesis_part_steps_total", "genesis_part_overflow_steps_total"}
    metrics.on_event("a", "r", stats())
    assert not any(series(metrics, name) for name in names)
    critic = PartStats(
        name="critic", attempted=8, overflow=3, loss=0.5, grad_norm=2.0, loss_scale=64.0
    )
    actor = PartStats(name="actor", attempted=4)
    for _ in range(2):
        metrics.on_event("a", "r", stats(applied=12, parts=(critic, actor)))
    metrics.on_event("b", "s", stats(applied=8, parts=(critic,)))
    assert value("genesis_part_steps_total", agent="a", part="critic") == 16
    assert value("genesis_part_overflow_steps_total", agent="a", part="critic") == 6
    assert value("genesis_part_overflow_steps_total", agent="a", part="actor") == 0
    assert value("genesis_part_loss_scale", agent="a", part="critic") == 64.0
    assert value("genesis_part_loss", agent="a", part="critic") == 0.5
    assert value("genesis_part_grad_norm", agent="a", part="critic") == 2.0
    assert value("genesis_part_loss", agent="a", part="actor") is None, "not measured"
    alpha = actor.model_copy(update={"name": "alpha", "loss": 1.0, "grad_norm": 1.0})
    metrics.on_event("a", "r2", stats(applied=12, parts=(critic, alpha)))
    for name in names:
        assert {(labels["agent"], labels["part"]) for labels in series(metrics, name)} == {
            ("a", "critic"),
            ("a", "alpha"),
            ("b", "critic"),
        }
    metrics.on_event("a", "r3", stats())
    for name in names:
        assert [labels["agent"] for labels in series(metrics, name)] == ["b"]


def test_a_fallback_is_told_apart_from_the_guard(metrics: Metrics, value: Value) -> None:
    by_floor, by_guard = replace(BY_FLAG, reason="floor_policy"), replace(BY_FLAG, reason="guard")
    for state in (FP16, by_floor, by_guard):
        metrics.on_event("a", "r", changed(state))
    assert value("genesis_precision_rollbacks_total", agent="a", reason="floor_policy") == 1
    assert value("genesis_precision_rollbacks_total", agent="a", reason="guard") == 0
    [named] = series(metrics, "genesis_precision_info")
    assert named["reason"] == "guard"


def test_a_mismatch_is_shown_with_its_floor(metrics: Metrics, value: Value) -> None:
    name = "genesis_mismatch_excess_kl"
    metrics.register_agent("a")
    metrics.on_run_state("a", "r", RunState.STARTING)
    assert value(name, agent="a", pair="policy_rollout") is None, "not a policy, or not measured"
    floor = Combination(policy="fp32", rollout="fp32", k3=0.001, mean_difference=0.0)
    report = MismatchReport(
        policy="bf16", rollout="bf16", tokens=9, sequences=3, k1=-0.5, k2=0.002, k3=0.003,
        mean_difference=0.1, max_difference=0.2, pearson=math.nan, chi2_token=0.01,
        chi2_sequence=math.inf, effective_sample_size=0.8, sequence_std=0.1, slope=0.04,
        combinations=(floor,), seconds=0.5,
    )  # fmt: skip
    reference = ReferenceReport(precision="bf16", **{**report.model_dump(), "k3": 0.004})
    for earlier in (None, reference):
        event = MismatchMeasured(step=9, round=3, report=report, reference=earlier)
        metrics.on_event("a", "r", event)

    def of(name: str, **labels: str) -> float | None:
        return value(f"genesis_mismatch_{name}", agent="a", pair="policy_rollout", **labels)

    assert [of("samples_total"), of("seconds_total")] == [2, 1.0]
    assert [of("kl", estimator=estimator) for estimator in ("k1", "k2", "k3")] == [
        -0.5,
        0.002,
        0.003,
    ]
    assert [of("floor_kl"), of("excess_kl")] == [0.001, pytest.approx(0.002)]
    assert [of("probability_difference", statistic=e) for e in ("mean", "max")] == [0.1, 0.2]
    assert [of("chi2", level=level) for level in ("token", "sequence")] == [0.01, math.inf]
    assert [of("effective_sample_ratio"), of("slope")] == [0.8, 0.04]
    assert math.isnan(of("correlation") or 0.0)
    pair = {"agent": "a", "pair": "reference_fp32"}
    assert value("genesis_mismatch_samples_total", **pair) == 1
    assert value("genesis_mismatch_kl", estimator="k3", **pair) == 0.004
    assert value("genesis_mismatch_floor_kl", **pair) == 0
    assert value("genesis_mismatch_excess_kl", **pair) == 0.004


def test_what_a_correction_leaves_is_shown(metrics: Metrics, value: Value) -> None:
    measured = {"reward": 0.5, "correction_dropped_fraction": 0.25, "correction_sequence_ess": 0.9}
    evaluated = Evaluated(epoch=2, metrics=measured, primary="reward", higher_is_better=True)
    metrics.on_event("a", "r", evaluated)
    name = "genesis_policy_correction_ratio"
    assert value(name, agent="a", statistic="dropped_fraction") == 0.25
    assert value(name, agent="a", statistic="sequence_ess") == 0.9
    assert value(name, agent="a", statistic="weight_mean") is None


def test_guard_states_are_one_hot_and_trips_add_up(metrics: Metrics, value: Value) -> None:
    def states() -> dict[str, float | None]:
        name = "genesis_guard_state"
        return {str(state): value(name, agent="a", state=str(state)) for state in GuardState}

    metrics.on_run_state("a", "r", RunState.STARTING)
    assert states() == {"watching": 1, "tripped": 0, "probation": 0}
    assert value("genesis_guard_trips_total", agent="a", trigger="underflow") == 0
    metrics.guard_tripped("a", Trigger.OVERFLOW_STORM)
    metrics.set_guard_state("a", GuardState.TRIPPED)
    assert states() == {"watching": 0, "tripped": 1, "probation": 0}
    assert value("genesis_guard_trips_total", agent="a", trigger="overflow_storm") == 1
    metrics.register_agent("a")
    assert states()["tripped"] == 1


def test_run_states_count_unfinished_runs(metrics: Metrics, value: Value) -> None:
    metrics.on_run_state("a", "r1", "queued")
    metrics.on_run_state("a", "r1", "running")
    metrics.on_run_state("a", "r2", "queued")
    assert value("genesis_run_state", agent="a", state="running") == 1
    assert value("genesis_run_state", agent="a", state="queued") == 1
    metrics.on_event("a", "r1", stats(applied=20, seconds=2.0))
    metrics.on_event("a", "r1", stats(applied=20, seconds=2.5))
    metrics.on_run_state("a", "r1", "succeeded")
    assert value("genesis_run_state", agent="a", state="running") == 0
    assert value("genesis_runs_total", agent="a", result="succeeded") == 1
    assert value("genesis_last_success_timestamp_seconds", agent="a") == 1000.0
    assert value("genesis_training_duration_seconds_sum", agent="a") == 4.5
    metrics.on_run_state("a", "r2", "failed")
    assert value("genesis_training_duration_seconds_count", agent="a") == 1
    assert value("genesis_run_state", agent="a", state="queued") == 0


def test_checkpoints_and_resumptions(metrics: Metrics, value: Value) -> None:
    saved = CheckpointSaved(time=77.0, step=5, path="p", size_bytes=9, seconds=0.02)
    metrics.on_event("a", "r", saved)
    metrics.on_event("a", "r", Resumed(step=5, path="p"))
    assert value("genesis_last_checkpoint_timestamp_seconds", agent="a") == 77.0
    assert value("genesis_last_checkpoint_bytes", agent="a") == 9
    assert value("genesis_checkpoint_duration_seconds_count", agent="a") == 1
    assert value("genesis_run_resumes_total", agent="a") == 1


def test_daemon_metrics(metrics: Metrics, value: Value) -> None:
    metrics.set_plugin_up("b", False)
    metrics.set_queue(4, 1, 3)
    metrics.set_next_run("a", 5.0, 60.0)
    metrics.set_last_success("a", 3.0)
    metrics.round_failed()
    metrics.set_store_up(False)
    metrics.set_schedule_lag("a", 0.5)
    metrics.set_leader(True)
    metrics.loop_ticked(12.0, 1.0)
    metrics.set_engine_trouble(7.0)
    metrics.config_reloaded(True)
    metrics.set_unknown_settings(2)
    metrics.config_reloaded(False)
    assert value("genesis_plugin_up", agent="a") == 1
    assert value("genesis_plugin_up", agent="b") == 0
    assert value("genesis_queue_depth") == 4
    assert value("genesis_slots", state="free") == 2
    assert value("genesis_schedule_next_fire_timestamp_seconds", agent="a") == 5.0
    assert value("genesis_schedule_period_seconds", agent="a") == 60.0
    assert value("genesis_last_success_timestamp_seconds", agent="a") == 3.0
    assert value("genesis_rounds_failed_total") == 1
    assert value("genesis_store_up") == 0
    assert value("genesis_schedule_lag_seconds", agent="a") == 0.5
    assert value("genesis_leader") == 1
    assert value("genesis_loop_last_tick_timestamp_seconds") == 12.0
    assert value("genesis_engine_trouble_seconds") == 7
    assert value("genesis_config_reload_success") == 0
    assert value("genesis_unknown_settings") == 2
    assert value("genesis_config_reloads_total", result="refused") == 1


def test_run_id_is_an_exemplar_and_never_a_label(metrics: Metrics) -> None:
    metrics.on_event("a", "run-7", stats(applied=1, seconds=0.01))
    families = list(text_string_to_metric_families(openmetrics(metrics.registry).decode()))
    samples = [sample for family in families for sample in family.samples]
    assert any(s.exemplar and s.exemplar.labels == exemplar_of("run-7") for s in samples)
    assert all("run_id" not in sample.labels for sample in samples)
