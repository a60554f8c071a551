"""Events in, log lines (or a bar) out."""

import io
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
from rich.console import Console
from structlog.testing import capture_logs

from genesis_fp16.daemon.run_log import LINE_SECONDS, MAX_LINES, RunLogger
from genesis_fp16.domain.run import Ending, PartTotals, RunState, RunSummary, RunTransition
from genesis_fp16.store import Store
from infrastructure.events import Event, PrecisionState
from infrastructure.events.event import (
    CheckpointSaved,
    Evaluated,
    Finished,
    Notice,
    PhaseStarted,
    PrecisionChanged,
    PreflightDone,
    Progress,
    Published,
    Started,
    StepStats,
)
from infrastructure.events.preflight_report import PreflightReport

Lines = list[MutableMapping[str, Any]]
FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")
BY_FLAG = PrecisionState(requested="fp16", effective="fp32", reason="flag")
FLOOD = {
    PhaseStarted: PhaseStarted(phase="train"),
    Started: Started(pid=1, device="cpu", torch_version="2"),
    CheckpointSaved: CheckpointSaved(step=1, path="p", size_bytes=1, seconds=0.1),
    Published: Published(published=False, reason="no better"),
    Finished: Finished(outcome="failed", error="odd"),
}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lines() -> Iterator[Lines]:
    with capture_logs() as lines:
        yield lines


@pytest.fixture
def run_logger(clock: Clock) -> RunLogger:
    return RunLogger(clock=clock)


def send(run_logger: RunLogger, *events: Event) -> None:
    for event in events:
        run_logger.on_event("a", "r", event)


def named(lines: Lines, event: str) -> Lines:
    return [line for line in lines if line["event"] == event]


def steps(step: int, **changes: object) -> StepStats:
    values = {"step": step, "total_steps": 100, "applied": 20, "loss": 0.123456}
    return StepStats.model_validate(
        {**values, "seconds": 2.0, "precision": "fp16", "loss_scale": 1024.0, "fp16": 20, **changes}
    )


def test_a_run_ends_with_one_summary_line(
    run_logger: RunLogger, clock: Clock, lines: Lines
) -> None:
    run_logger.on_run_state("a", "r", "queued")
    run_logger.on_run_state("a", "r", "starting")
    send(
        run_logger,
        Started(pid=1, device="cpu", torch_version="2"),
        PhaseStarted(phase="train"),
        PrecisionChanged(step=0, state=FP16, loss_scale=65536.0),
        steps(20, overflow=3),
        steps(40),
        Evaluated(epoch=1, metrics={"auc": 0.87654, "steps": 1.0}, primary="auc"),
        Evaluated(epoch=2, metrics={"auc": 0.1}, primary="auc"),  # worse: not the one published
        Published(published=False, reason="no better than the base rate", metrics={"auc": 0.87654}),
        Finished(outcome="done"),
    )
    clock.now += 60.0
    run_logger.on_run_state("a", "r", "succeeded")
    assert lines[-1] == {
        "event": "run_ended",
        "log_level": "info",
        "agent": "a",
        "run_id": "r",
        "state": "succeeded",
        "seconds": 60.0,
        "steps": 40,
        "fp16_steps": 40,
        "overflows": 3,
        "precision": "requested=fp16 effective=fp16 reason=default",
        "auc": 0.8765,
        "published": False,
        "reason": "no better than the base rate",
    }
    assert named(lines, "model_not_published")[0]["reason"] == "no better than the base rate"
    assert named(lines, "phase_ended")[0]["loss"] == 0.1235
    assert run_logger._runs == {}


@pytest.mark.parametrize(("state", "level"), [("cancelled", "info"), ("failed", "error")])
def test_an_intended_end_is_not_an_error(
    run_logger: RunLogger, lines: Lines, state: str, level: str
) -> None:
    run_logger.on_run_state("a", "r", "queued")
    run_logger.on_run_state("a", "r", state)
    assert (lines[-1]["event"], lines[-1]["log_level"]) == ("run_ended", level)


def test_totals_include_attempts_under_an_earlier_daemon(
    clock: Clock, lines: Lines, store: Store
) -> None:
    run = store.enqueue("a", first_seed=0)
    for number in (1, 2):
        attempt = store.begin_attempt(run.id, str(number))
        assert attempt is not None
        if number == 1:
            again = RunTransition(state=RunState.QUEUED)
            store.end_attempt(attempt, Ending(), again, finished_at=attempt.started_at)
    parts = {"critic": PartTotals(overflows=3), "actor": PartTotals(overflows=1)}
    totals = RunSummary(steps=60, fp16_steps=80, overflows=4, parts=parts)
    store.update_summary(run.id, totals)
    run_logger = RunLogger(clock=clock, store=store)  # of a daemon that saw the second only
    run_logger.on_run_state("a", run.id, "starting")
    run_logger.on_event("a", run.id, steps(20))
    run_logger.on_event("a", run.id, steps(60, overflow=1))
    run_logger.on_run_state("a", run.id, "succeeded")
    shown = {name: lines[-1][name] for name in ("steps", "fp16_steps", "overflows", "attempts")}
    assert shown == {"steps": 60, "fp16_steps": 80, "overflows": 4, "attempts": 2}
    assert lines[-1]["part_overflows"] == "critic 3, actor 1"


def test_a_killed_attempt_does_not_end_with_the_error_of_an_earlier_one(
    clock: Clock, lines: Lines, store: Store
) -> None:
    run = store.enqueue("a", first_seed=0)
    run_logger = RunLogger(clock=clock, store=store)
    run_logger.on_event("a", run.id, Finished(outcome="disk_full", error="the disk is full"))
    run_logger.on_run_state("a", run.id, "starting")
    store.update_summary(run.id, RunSummary(error="killed by signal 9; see its worker.log"))
    run_logger.on_run_state("a", run.id, "crashed")
    assert lines[-1]["error"] == "killed by signal 9; see its worker.log"


def test_a_flood_of_notices_is_counted_instead_of_logged(
    run_logger: RunLogger, clock: Clock, lines: Lines
) -> None:
    run_logger.on_run_state("a", "r", "starting")
    odd = Notice(level="warning", event="odd_file")
    send(run_logger, *[odd] * 3 * MAX_LINES)
    assert len(named(lines, "odd_file")) == MAX_LINES
    clock.now += LINE_SECONDS
    send(run_logger, odd, odd)
    assert len(named(lines, "odd_file")) == MAX_LINES + 1, "a long run may go on reporting"
    run_logger.on_run_state("a", "r", "queued")
    run_logger.on_run_state("a", "r", "failed")
    [left_out] = named(lines, "events_not_logged")
    assert left_out["lines"] == 2 * MAX_LINES + 1


@pytest.mark.parametrize("kind", [PhaseStarted, Started, CheckpointSaved, Published, Finished])
def test_no_kind_of_event_can_flood_the_log(
    run_logger: RunLogger, lines: Lines, kind: type[Event]
) -> None:
    send(run_logger, *[FLOOD[kind]] * 10 * MAX_LINES)
    assert len(lines) <= MAX_LINES


def test_a_verdict_with_many_reasons_cannot_flood_the_log(
    run_logger: RunLogger, lines: Lines
) -> None:
    report = PreflightReport(
        measured_at=1.0,
        device="cpu",
        device_name="cpu",
        torch_version="2",
        threads=1,
        batches=1,
        measurements=(),
        modules=(),
        largest_safe_scale=None,
        recommended_scale=None,
        underflow=0.0,
        verdict="fp32",
        reasons=("because",) * 10 * MAX_LINES,
    )
    send(run_logger, PreflightDone(report=report))
    assert len(lines) == MAX_LINES


def test_an_evaluation_without_its_primary_metric_is_logged(
    run_logger: RunLogger, lines: Lines
) -> None:
    send(run_logger, Evaluated(epoch=1, metrics={"mse": 0.5}, primary="auc"))
    assert named(lines, "model_evaluated")[0]["epoch"] == 1


def test_stopped_phase_has_not_ended(run_logger: RunLogger, lines: Lines) -> None:
    run_logger.on_run_state("a", "r", "starting")
    send(run_logger, PhaseStarted(phase="train"), steps(20))
    run_logger.on_run_state("a", "r", "queued")
    assert named(lines, "phase_stopped")[0]["steps"] == 20
    assert named(lines, "phase_ended") == []


def test_progress_is_logged_every_few_seconds(
    run_logger: RunLogger, clock: Clock, lines: Lines
) -> None:
    send(run_logger, PhaseStarted(phase="collect"))
    for done in range(1, 101):
        clock.now += LINE_SECONDS / 10
        send(run_logger, Progress(phase="collect", done=done, total=100, unit="transitions"))
    reports = named(lines, "progress_reported")
    assert len(reports) == 10
    assert (reports[0]["phase"], reports[0]["done"], reports[0]["of"]) == ("collect", 10, 100)


def test_training_line_shows_loss_and_overflows(
    run_logger: RunLogger, clock: Clock, lines: Lines
) -> None:
    send(run_logger, PhaseStarted(phase="train"), steps(20, overflow=2))
    clock.now += LINE_SECONDS
    send(run_logger, steps(40, overflow=1))
    (line,) = named(lines, "progress_reported")
    assert (line["step"], line["of"], line["loss"]) == (40, 100, 0.1235)
    assert (line["overflows"], line["loss_scale"], line["steps_per_second"]) == (3, 1024.0, 10.5)


def test_lowered_precision_is_a_warning_with_its_reason(
    run_logger: RunLogger, lines: Lines
) -> None:
    send(run_logger, PrecisionChanged(step=0, state=FP16, loss_scale=65536.0))
    send(run_logger, PrecisionChanged(step=9, state=BY_FLAG, loss_scale=1.0))
    first, second = named(lines, "precision_changed")
    assert first["log_level"] == "info"
    assert second["log_level"] == "warning"
    assert (second["requested"], second["effective"], second["reason"]) == ("fp16", "fp32", "flag")


def test_failure_is_logged_with_its_error(run_logger: RunLogger, lines: Lines) -> None:
    send(run_logger, Finished(outcome="failed", error="it broke"))
    run_logger.on_run_state("a", "r", "failed")
    assert named(lines, "attempt_failed")[0]["error"] == "it broke"
    assert lines[-1]["log_level"] == "error"
    assert lines[-1]["error"] == "it broke"


def test_the_notice_of_an_agent_cannot_overwrite_the_lines_own_fields(
    run_logger: RunLogger, lines: Lines
) -> None:
    fields = {"event": "x", "run_id": "forged", "file": "f"}
    send(run_logger, Notice(level="warning", event="record_skipped", fields=fields))
    (line,) = lines
    assert (line["run_id"], line["run_id_"], line["file"]) == ("r", "forged", "f")
    assert line["log_level"] == "warning"


def test_a_warning_is_logged_with_its_error_and_reason(run_logger: RunLogger, lines: Lines) -> None:
    fields = {"reason": "floor_policy", "name": "trunk"}
    send(run_logger, Notice.warning("loss_scale_floor", "overflows", **fields))
    (line,) = lines
    assert fields.items() <= line.items()
    assert line["error"] == "overflows"
    assert not {"error_", "reason_"} & line.keys()


def test_terminal_gets_a_bar_instead_of_lines(clock: Clock, lines: Lines) -> None:
    screen = io.StringIO()
    run_logger = RunLogger(Console(file=screen, force_terminal=True, width=120), clock)
    send(run_logger, PhaseStarted(phase="collect"))
    clock.now += LINE_SECONDS
    send(run_logger, Progress(phase="collect", done=7, total=100, unit="transitions"))
    run_logger.close()
    assert "done=7 of=100" in screen.getvalue()
    send(run_logger, PhaseStarted(phase="train"), steps(20))
    run_logger.close()
    assert "loss=0.1235" in screen.getvalue()
    assert named(lines, "progress_reported") == []


def test_no_terminal_no_bar(clock: Clock, lines: Lines) -> None:
    run_logger = RunLogger(Console(file=io.StringIO()), clock)
    send(run_logger, PhaseStarted(phase="collect"))
    clock.now += LINE_SECONDS
    send(run_logger, Progress(phase="collect", done=7))
    assert len(named(lines, "progress_reported")) == 1


def test_a_primary_metric_that_is_missing_is_named(
    run_logger: RunLogger, clock: Clock, lines: Lines
) -> None:
    run_logger.on_run_state("a", "r", "starting")
    send(run_logger, Evaluated(epoch=1, metrics={"mse": 0.5, "auc": 1.0}, primary="mae"))
    run_logger.on_run_state("a", "r", "succeeded")
    [warning] = named(lines, "primary_metric_missing")
    assert (warning["primary"], warning["metrics"]) == ("mae", "auc, mse")
    assert "evaluate()" in warning["remedy"]
    assert named(lines, "run_ended")
