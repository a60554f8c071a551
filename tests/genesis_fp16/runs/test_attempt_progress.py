"""The summary of a worker's events, and the deadlines that they meet."""

import math
from pathlib import Path

import pytest

from genesis_fp16.domain.event_limits import MAX_NAMES
from genesis_fp16.domain.run import PartTotals, RunSummary, StopCause
from genesis_fp16.runs.attempt_progress import AttemptProgress
from genesis_fp16.settings import Settings
from infrastructure.events import Event, EventTail, EventWriter, PrecisionState, Role
from infrastructure.events.event import (
    Evaluated,
    Finished,
    Notice,
    PartStats,
    PrecisionChanged,
    Published,
    Started,
    StepStats,
)

SETTINGS = Settings(
    start_timeout_seconds=10, no_progress_timeout_seconds=20, run_timeout_seconds=100
)
STARTED = Started(pid=1, device="cpu", torch_version="2")
STEP = StepStats(step=7, applied=7, loss_scale=1.0, precision="fp32")
FP32 = PrecisionState(requested="fp16", effective="fp32", reason="flag")
FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")
BY_OPERATOR = PrecisionState(requested="fp16", effective="fp16", reason="operator")
FALLBACK = PrecisionState(requested="fp16", effective="fp32", reason="floor_policy")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.ndjson"


@pytest.fixture
def emit(path: Path):
    with EventWriter(path) as writer:
        yield writer


def follow(path: Path, offset: int = 0, summary: RunSummary | None = None) -> AttemptProgress:
    return AttemptProgress(EventTail(path, offset), summary or RunSummary(), SETTINGS, 0.0)


def test_the_summary_of_a_run(path: Path, emit) -> None:
    for event in (
        STARTED,
        PrecisionChanged(step=0, state=FP32, loss_scale=1.0),
        STEP,
        Evaluated(
            epoch=1,
            metrics={"mse": 0.5, "odd": float("inf")},
            primary="mse",
            higher_is_better=False,
        ),
        Published(published=False, reason="not better", metrics={"base": 0.4, "odd": math.inf}),
        Finished(outcome="done"),
    ):
        emit(event)
    progress = follow(path, summary=RunSummary(steps=3, error="of an earlier attempt"))
    assert len(list(progress.read(1.0))) == 6
    assert list(progress.read(1.0)) == []
    assert progress.summary == RunSummary(
        published=False,
        reason="not better",
        metrics={"base": 0.4, "odd": None},
        primary_metric="mse",
        primary_value=0.5,
        higher_is_better=False,
        steps=7,
        precision={"requested": "fp16", "effective": "fp32", "reason": "flag"},
        error=None,
    )
    assert progress.outcome == "done"


def test_runs_are_compared_by_what_was_trained_and_shown_by_what_was_published(
    path: Path, emit
) -> None:
    """A twin publishes nothing; what is published may be an ensemble's or an earlier epoch's."""
    emit(Evaluated(epoch=1, metrics={"mse": 0.5}, primary="mse"))
    emit(Published(published=True, reason="better", metrics={"mse": 0.25}))
    progress = follow(path)
    list(progress.read(1.0))
    assert progress.summary.primary_value == 0.5
    assert progress.summary.metrics == {"mse": 0.25}


def test_roles_are_part_of_the_summary(path: Path, emit) -> None:
    roles = {Role.POLICY: "fp32/bf16/fp32", Role.ROLLOUT: "fp32/fp32/fp32"}
    state = PrecisionState(requested="bf16", effective="bf16", reason="default", roles=roles)
    emit(PrecisionChanged(step=0, state=state, loss_scale=1.0))
    progress = follow(path)
    list(progress.read(1.0))
    assert progress.summary.precision == {
        "requested": "bf16",
        "effective": "bf16",
        "reason": "default",
        "roles": "policy:fp32/bf16/fp32,rollout:fp32/fp32/fp32",
    }


def test_steps_in_half_precision_are_counted_once(path: Path, emit) -> None:
    half = StepStats(step=7, applied=6, overflow=1, fp16=7, loss_scale=2.0, precision="fp16")
    emit(half)
    seen = path.stat().st_size
    emit(STEP)
    emit(half)
    earlier = RunSummary(half_steps=7, fp16_steps=7, overflows=1)
    progress = follow(path, offset=seen, summary=earlier)
    assert [event.kind for event in progress.read(1.0)] == ["step_stats"] * 2
    counted = progress.summary
    assert (counted.half_steps, counted.fp16_steps, counted.overflows) == (14, 14, 2)


def test_parts_are_counted_one_by_one(path: Path, emit) -> None:
    critic = PartStats(name="critic", attempted=8, overflow=2, loss=0.5, loss_scale=64.0)
    actor = PartStats(name="actor", attempted=4, nonfinite_loss=1, loss=math.inf, loss_scale=8.0)
    emit(StepStats(step=12, applied=12, loss_scale=8.0, precision="fp16", parts=(critic, actor)))
    later = critic.model_copy(update={"loss": math.nan, "loss_scale": 32.0})
    emit(StepStats(step=24, applied=12, loss_scale=8.0, precision="fp16", parts=(later, actor)))
    earlier = {"critic": PartTotals(steps=5, overflows=1), "gone": PartTotals(steps=3)}
    progress = follow(path, summary=RunSummary(parts=earlier))
    list(progress.read(1.0))
    assert progress.summary.parts == {
        "critic": PartTotals(steps=21, overflows=5, loss=0.5, loss_scale=32.0),
        "actor": PartTotals(steps=8, nonfinite_losses=2, loss_scale=8.0),
    }
    emit(STEP)
    list(progress.read(1.0))
    assert progress.summary.parts is None, "the job has one part now"


def changed(state: PrecisionState, time: float) -> PrecisionChanged:
    return PrecisionChanged(step=1, state=state, loss_scale=1.0, time=time)


def fell_back_at(path: Path, *events: Event) -> float | None:
    times = iter([event.time for event in events])
    with EventWriter(path, lambda: next(times)) as write:
        for event in events:
            write(event)
    progress = follow(path)
    list(progress.read(1.0))
    return progress.summary.fell_back_at


def test_a_workers_own_fallback_is_remembered(path: Path) -> None:
    events = [changed(FP16, 1.0), changed(FALLBACK, 2.0), changed(FP32, 3.0)]
    assert fell_back_at(path, *events) == 2.0


def test_a_workers_other_precision_is_no_fallback(path: Path) -> None:
    assert fell_back_at(path, changed(FP16, 1.0), changed(FP32, 2.0)) is None


def test_only_a_fallback_from_half_precision_is_a_new_one(path: Path) -> None:
    """The same acknowledgement answers the daemon, and begins a resumed attempt."""
    events = [changed(FALLBACK, 2.0), changed(FALLBACK, 3.0)]
    assert fell_back_at(path, *events) == 2.0
    path.unlink()
    events += [changed(BY_OPERATOR, 4.0), changed(FALLBACK, 5.0)]
    assert fell_back_at(path, *events) == 5.0


@pytest.mark.parametrize(("reason", "expected"), [("floor_policy", 2.0), ("flag", None)])
def test_a_fallback_that_needs_a_restart_is_remembered(path: Path, reason, expected) -> None:
    """A sharded model cannot leave FP16 in place: its next attempt begins in FP32."""
    fields = {"error": "pinned", "reason": reason}
    event = Notice(level="warning", event="precision_needs_restart", fields=fields, time=2.0)
    assert fell_back_at(path, event) == expected


def test_the_metrics_of_a_run_are_limited(path: Path, emit) -> None:
    for epoch in range(3):
        metrics = {f"metric_{epoch}_{n}": 0.5 for n in range(MAX_NAMES)}
        emit(Evaluated(epoch=epoch, metrics=metrics, primary=f"metric_{epoch}_7"))
    progress = follow(path)
    list(progress.read(1.0))
    assert progress.summary.metrics is not None
    assert len(progress.summary.metrics) == MAX_NAMES
    assert progress.summary.primary_value == 0.5


def test_refused_events_are_counted_and_are_no_sign_of_life(path: Path, emit) -> None:
    emit(STARTED)
    progress = follow(path)
    list(progress.read(1.0))
    emit(STEP.model_copy(update={"applied": 30_000_000}))
    with path.open("ab") as file:
        file.write(b"no event\n")
    assert list(progress.read(20.0)) == []
    assert progress.summary.steps == 0
    problems = progress.problems
    assert (problems["impossible_events"], problems["malformed_lines"]) == (1, 1)
    assert "steps in each second" in str(problems["first_problem"])
    assert progress.overdue(21.0) is StopCause.NO_PROGRESS


def test_a_worker_is_not_silent_while_its_events_wait(path: Path, emit) -> None:
    emit(STARTED)
    emit(STEP)
    progress = follow(path)
    assert len(list(progress.read(1.0, deadline=0.0))) == 1
    assert progress.overdue(90.0) is None
    assert progress.overdue(100.0) is StopCause.RUN_TIMEOUT
    assert len(list(progress.read(90.0))) == 1
    assert progress.overdue(95.0) is None, "it was not silent"


def test_the_start_has_a_deadline(path: Path, emit) -> None:
    progress = follow(path)
    assert progress.overdue(9.9) is None
    assert progress.overdue(10.0) is StopCause.START_TIMEOUT
    emit(STARTED)
    list(progress.read(10.0))
    assert progress.overdue(10.0) is None


def test_silence_has_a_deadline(path: Path, emit) -> None:
    emit(STARTED)
    progress = follow(path)
    list(progress.read(5.0))
    assert progress.overdue(24.9) is None
    assert progress.overdue(25.0) is StopCause.NO_PROGRESS
    emit(STEP)
    list(progress.read(25.0))
    assert progress.overdue(44.9) is None


def test_a_run_has_a_deadline_over_all_its_attempts(path: Path, emit) -> None:
    settings = Settings(run_timeout_seconds=100, no_progress_timeout_seconds=50)
    tail = EventTail(path)
    progress = AttemptProgress(tail, RunSummary(), settings, 1000.0, used_seconds=70)
    emit(STARTED)
    list(progress.read(1029.0))
    assert progress.overdue(1029.9) is None
    assert progress.overdue(1030.0) is StopCause.RUN_TIMEOUT
