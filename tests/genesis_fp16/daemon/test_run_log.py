"""Events in, log lines (or a bar) out."""

import io
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from structlog.testing import capture_logs

from genesis_fp16.daemon.run_log import LINE_SECONDS, Narrator
from infrastructure.events import Event, EventWriter, PrecisionState
from infrastructure.events.event import (
    Evaluated,
    Finished,
    Notice,
    PhaseStarted,
    PrecisionChanged,
    Progress,
    Published,
    Started,
    StepStats,
)

Lines = list[MutableMapping[str, Any]]
FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")
BY_FLAG = PrecisionState(requested="fp16", effective="fp32", reason="flag")


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
def narrator(clock: Clock) -> Narrator:
    return Narrator(clock=clock)


def tell(narrator: Narrator, *events: Event) -> None:
    for event in events:
        narrator.on_event("a", "r", event)


def named(lines: Lines, event: str) -> Lines:
    return [line for line in lines if line["event"] == event]


def steps(step: int, **changes: object) -> StepStats:
    values = {"step": step, "total_steps": 100, "applied": 20, "loss": 0.123456}
    return StepStats.model_validate(
        {**values, "seconds": 2.0, "precision": "fp16", "loss_scale": 1024.0, "fp16": 20, **changes}
    )


def test_whole_run_ends_in_one_line_that_says_it_all(
    narrator: Narrator, clock: Clock, lines: Lines
) -> None:
    narrator.on_run_state("a", "r", "queued")
    narrator.on_run_state("a", "r", "starting")
    tell(
        narrator,
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
    narrator.on_run_state("a", "r", "succeeded")
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
    assert narrator._stories == {}


@pytest.mark.parametrize(("state", "level"), [("cancelled", "info"), ("failed", "error")])
def test_an_end_that_was_wanted_is_no_error(
    narrator: Narrator, lines: Lines, state: str, level: str
) -> None:
    narrator.on_run_state("a", "r", "queued")
    narrator.on_run_state("a", "r", state)
    assert (lines[-1]["event"], lines[-1]["log_level"]) == ("run_ended", level)


def test_totals_are_of_all_attempts_under_whatever_daemon(
    clock: Clock, lines: Lines, tmp_path: Path
) -> None:
    first = tmp_path / "r" / "attempts" / "1"
    second = first.with_name("2")
    for folder, last in ((first, steps(40, overflow=3)), (second, steps(60, overflow=1))):
        folder.mkdir(parents=True)
        with EventWriter(folder / "events.ndjson") as emit:
            emit(steps(20))
            emit(last)
    narrator = Narrator(clock=clock, runs=tmp_path)  # of a daemon that saw the second only
    narrator.on_run_state("a", "r", "queued")
    narrator.on_run_state("a", "r", "starting")
    tell(narrator, steps(20), steps(60, overflow=1))
    narrator.on_run_state("a", "r", "succeeded")
    told = {name: lines[-1][name] for name in ("steps", "fp16_steps", "overflows", "attempts")}
    assert told == {"steps": 60, "fp16_steps": 80, "overflows": 4, "attempts": 2}


def test_stopped_phase_has_not_ended(narrator: Narrator, lines: Lines) -> None:
    narrator.on_run_state("a", "r", "starting")
    tell(narrator, PhaseStarted(phase="train"), steps(20))
    narrator.on_run_state("a", "r", "queued")
    assert named(lines, "phase_stopped")[0]["steps"] == 20
    assert named(lines, "phase_ended") == []


def test_progress_is_told_every_few_seconds(narrator: Narrator, clock: Clock, lines: Lines) -> None:
    tell(narrator, PhaseStarted(phase="collect"))
    for done in range(1, 101):
        clock.now += LINE_SECONDS / 10
        tell(narrator, Progress(phase="collect", done=done, total=100, unit="transitions"))
    told = named(lines, "progress")
    assert len(told) == 10
    assert (told[0]["phase"], told[0]["done"], told[0]["of"]) == ("collect", 10, 100)


def test_training_line_shows_loss_and_overflows(
    narrator: Narrator, clock: Clock, lines: Lines
) -> None:
    tell(narrator, PhaseStarted(phase="train"), steps(20, overflow=2))
    clock.now += LINE_SECONDS
    tell(narrator, steps(40, overflow=1))
    (line,) = named(lines, "progress")
    assert (line["step"], line["of"], line["loss"]) == (40, 100, 0.1235)
    assert (line["overflows"], line["loss_scale"], line["steps_per_second"]) == (3, 1024.0, 10.5)


def test_lowered_precision_is_a_warning_with_its_reason(narrator: Narrator, lines: Lines) -> None:
    tell(narrator, PrecisionChanged(step=0, state=FP16, loss_scale=65536.0))
    tell(narrator, PrecisionChanged(step=9, state=BY_FLAG, loss_scale=1.0))
    first, second = named(lines, "precision_in_force")
    assert first["log_level"] == "info"
    assert second["log_level"] == "warning"
    assert (second["requested"], second["effective"], second["reason"]) == ("fp16", "fp32", "flag")


def test_failure_is_told_with_its_error(narrator: Narrator, lines: Lines) -> None:
    tell(narrator, Finished(outcome="failed", error="it broke"))
    narrator.on_run_state("a", "r", "failed")
    assert named(lines, "attempt_failed")[0]["error"] == "it broke"
    assert lines[-1]["log_level"] == "error"
    assert lines[-1]["error"] == "it broke"


def test_notice_of_an_agent_cannot_overwrite_the_lines_own_fields(
    narrator: Narrator, lines: Lines
) -> None:
    fields = {"event": "x", "run_id": "forged", "file": "f"}
    tell(narrator, Notice(level="warning", event="record_skipped", fields=fields))
    (line,) = lines
    assert (line["run_id"], line["run_id_"], line["file"]) == ("r", "forged", "f")
    assert line["log_level"] == "warning"


def test_terminal_gets_a_bar_instead_of_lines(clock: Clock, lines: Lines) -> None:
    screen = io.StringIO()
    narrator = Narrator(Console(file=screen, force_terminal=True, width=120), clock)
    tell(narrator, PhaseStarted(phase="collect"))
    clock.now += LINE_SECONDS
    tell(narrator, Progress(phase="collect", done=7, total=100, unit="transitions"))
    narrator.close()
    assert "done=7 of=100" in screen.getvalue()
    tell(narrator, PhaseStarted(phase="train"), steps(20))
    narrator.close()
    assert "loss=0.1235" in screen.getvalue()
    assert named(lines, "progress") == []


def test_no_terminal_no_bar(clock: Clock, lines: Lines) -> None:
    narrator = Narrator(Console(file=io.StringIO()), clock)
    tell(narrator, PhaseStarted(phase="collect"))
    clock.now += LINE_SECONDS
    tell(narrator, Progress(phase="collect", done=7))
    assert len(named(lines, "progress")) == 1
