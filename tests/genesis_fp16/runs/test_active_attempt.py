"""The summary of a worker's events, and the deadlines of an attempt."""

import math
from pathlib import Path

import pytest

from genesis_fp16.domain.run import RunSummary, StopCause
from genesis_fp16.executors import ExitStatus
from genesis_fp16.runs.active_attempt import ActiveAttempt, AttemptProgress
from genesis_fp16.settings import Settings
from infrastructure.events import EventWriter, PrecisionState
from infrastructure.events.event import (
    Evaluated,
    Finished,
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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.ndjson"


@pytest.fixture
def emit(path: Path):
    with EventWriter(path) as writer:
        yield writer


def follow(path: Path, seen_bytes: int = 0, summary: RunSummary | None = None) -> AttemptProgress:
    return AttemptProgress(path, summary or RunSummary(), SETTINGS, 0.0, seen_bytes=seen_bytes)


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


def test_steps_in_half_precision_are_counted_once(path: Path, emit) -> None:
    half = StepStats(step=7, applied=6, overflow=1, loss_scale=2.0, precision="fp16")
    emit(half)
    seen = path.stat().st_size
    emit(STEP)
    emit(half)
    progress = follow(path, seen_bytes=seen, summary=RunSummary(half_steps=7))
    list(progress.read(1.0))
    assert progress.summary.half_steps == 14


def test_events_an_earlier_daemon_passed_on_are_not_passed_on_again(path: Path, emit) -> None:
    emit(STARTED)
    emit(STEP)
    seen = path.stat().st_size
    emit(STEP)
    progress = follow(path, seen_bytes=seen)
    assert [event.kind for event in progress.read(1.0)] == ["step_stats"]
    assert progress.started, "but they are applied"


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
    progress = AttemptProgress(path, RunSummary(), settings, 1000.0, used_seconds=70)
    emit(STARTED)
    list(progress.read(1029.0))
    assert progress.overdue(1029.9) is None
    assert progress.overdue(1030.0) is StopCause.RUN_TIMEOUT


@pytest.mark.parametrize(
    ("code", "last", "full"),
    [
        (75, None, True),  # it could not report its end
        (75, "disk_full", True),
        (None, "disk_full", True),  # an orphan's code is unknown
        (75, "stopped", False),
        (1, None, False),
        (1, "failed", False),
    ],
)
def test_an_end_by_a_full_disk_is_recognised(path: Path, emit, code, last, full) -> None:
    if last:
        emit(Finished(outcome=last))
    active = ActiveAttempt(run=None, attempt=None, progress=follow(path))
    active.stop_cause = StopCause.NO_PROGRESS
    list(active.progress.read(1.0))
    ending = active.ending(ExitStatus(exit_code=code))
    assert (ending.disk_full, ending.cause) == (full, StopCause.NO_PROGRESS)
