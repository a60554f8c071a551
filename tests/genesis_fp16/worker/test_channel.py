"""Commands in; progress, statistics and notices out; the inbox runs in a separate process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genesis_fp16.worker.channel import PacedEvents, ProgressReporter, run_logger
from infrastructure.events.event import (
    BaseEvent,
    BaselineCompared,
    Evaluated,
    LostUpdatesMeasured,
    Notice,
    Progress,
    StepStats,
)

INBOX = """
import json, sys, time
from pathlib import Path
from genesis_fp16.worker import channel as worker_channel
worker_channel._ORPHAN_SECONDS = 3.0
from infrastructure.events import EventWriter, read_events
path = Path(sys.argv[1])
inbox = worker_channel.CommandInbox(EventWriter(path))
worker_channel.listen(worker_channel.take_stdin(), inbox)
assert sys.stdin.read() == ""
got = []
while len(got) < 2:
    got += [command.command for command in inbox.drain()]
notices = [notice.event for notice in read_events(path)]
print(json.dumps({"got": got, "notices": notices}), flush=True)
time.sleep(60)
"""


def test_the_inbox_reads_commands_and_ends_an_orphaned_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INBOX, str(tmp_path / "events.ndjson")],
        input='{"command": "checkpoint"}\nnonsense\n',
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(done.stdout) == {
        "got": ["checkpoint", "stop"],
        "notices": ["command_rejected"],
    }
    assert done.returncode == 75
    assert "orphaned" in done.stderr


def test_progress_is_bounded_by_time_and_ends_with_the_last() -> None:
    events: list[BaseEvent] = []
    now = [0.0]
    report = ProgressReporter(events.append, clock=lambda: now[0])
    for done in range(1, 101):
        now[0] += 0.01
        report(done, 100, unit="transitions")
    report.begin("train")
    assert [event.done for event in events if isinstance(event, Progress)] == [1, 51, 100]
    assert report.reports == 0
    report(5)
    assert events[-1] == Progress(phase="train", done=5)


def test_a_prompt_report_of_another_unit_is_sent_at_once() -> None:
    events: list[BaseEvent] = []
    report = ProgressReporter(events.append, clock=lambda: 9.0)
    report.begin("train")
    for unit in ("steps", "rounds"):
        for done in range(5):
            report.prompt(done, 5, unit=unit)
    sent = [(event.unit, event.done) for event in events if isinstance(event, Progress)]
    assert sent == [("steps", 0), ("rounds", 0)]


def test_log_lines_become_notices_at_a_limited_rate(capfd: pytest.CaptureFixture[str]) -> None:
    events: list[BaseEvent] = []
    logger = run_logger(events.append, "a", "r")
    for number in range(500):
        logger.warning("record_skipped", offset=number)
    logger.info("repaired", tasks=3)
    notices = [event for event in events if isinstance(event, Notice)]
    assert notices[0] == Notice(level="warning", event="record_skipped", fields={"offset": "0"})
    assert notices[-1] == Notice(level="info", event="repaired", fields={"tasks": "3"})
    assert len(notices) < 20
    log = capfd.readouterr().err
    assert log.count("record_skipped") == 500
    assert "agent='a' run_id='r'" in log


def test_a_few_lines_of_one_event_all_become_notices() -> None:
    """Such as the different problems of one folder of records."""
    events: list[BaseEvent] = []
    logger = run_logger(events.append, "a", "r")
    for number in range(8):
        logger.warning("records_incomplete", problem=number)
    texts = [event.fields["problem"] for event in events if isinstance(event, Notice)]
    assert texts == [str(number) for number in range(8)]


def test_progress_that_is_not_a_number_is_reported_and_does_not_fail_the_run() -> None:
    events: list[BaseEvent] = []
    report = ProgressReporter(events.append, clock=lambda: 9.0)
    report(float("nan"))
    report(float("nan"))
    report.begin("train")
    report(1, metrics={"mse": float("nan")})
    notice, progress = events
    assert isinstance(notice, Notice)
    assert (notice.event, notice.fields["phase"]) == ("progress_rejected", "collect")
    assert "done" in notice.fields["error"]
    assert isinstance(progress, Progress)


class Paced:
    """Paced events, a clock, and the events sent."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sent: list[BaseEvent] = []
        self.emit = PacedEvents(self.sent.append, clock=lambda: self.now)


@pytest.fixture
def paced() -> Paced:
    return Paced()


def steps(**changes: object) -> StepStats:
    fields = {"step": 10, "applied": 10, "fp16": 10, "loss_scale": 4.0, "precision": "fp16"}
    return StepStats.model_validate({**fields, **changes})


def evaluated(epoch: int) -> Evaluated:
    return Evaluated(epoch=epoch, metrics={"mse": 1.0}, primary="mse")


@pytest.mark.process
def test_an_hour_of_short_epochs_sends_once_a_second(paced: Paced) -> None:
    with paced.emit as emit:
        for epoch in range(36_000):
            paced.now = 100.0 + epoch / 10
            emit(steps(step=10 * (epoch + 1), epoch=epoch))
            emit(evaluated(epoch))
    received = [event for event in paced.sent if isinstance(event, StepStats)]
    assert 3500 < len(received) <= 3602
    assert len(paced.sent) - len(received) <= 3602
    assert sum(event.applied for event in received) == received[-1].step == 360_000
    assert paced.sent[-1] == evaluated(35_999)


def test_held_back_events_are_sent_before_others_and_at_the_end(paced: Paced) -> None:
    notice = Notice(event="weights_restored")
    with paced.emit as emit:
        for event in (steps(step=10), steps(step=20), evaluated(1), notice, steps(step=30)):
            emit(event)
    kinds = [event.kind for event in paced.sent]
    assert kinds == ["step_stats", "step_stats", "evaluated", "notice", "step_stats"]
    assert [event.step for event in paced.sent if isinstance(event, StepStats)] == [10, 20, 30]


def test_measurements_pass_at_once(paced: Paced) -> None:
    where = {"step": 9, "precision": "fp16", "loss_scale": 1.0}
    compared = BaselineCompared(loss=1.0, fp32_loss=1.0, **where)
    lost = LostUpdatesMeasured(seconds=0.1, **where)
    for event in (steps(), steps(), compared, lost):
        paced.emit(event)
    kinds = [event.kind for event in paced.sent]
    assert kinds == ["step_stats", "baseline_compared", "lost_updates_measured"]


def test_windows_held_back_are_merged(paced: Paced) -> None:
    paced.emit(steps())
    paced.emit(steps(step=20, applied=6, overflow=2, nonfinite_loss=2))
    paced.emit(steps(step=30, applied=4))
    paced.emit.flush()
    assert len(paced.sent) == 2
    merged = paced.sent[-1]
    assert isinstance(merged, StepStats)
    assert (merged.step, merged.applied, merged.overflow, merged.nonfinite_loss) == (30, 10, 2, 2)


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 3)), max_size=40))
def test_no_step_is_lost_whenever_they_come(windows: list[tuple[int, float]]) -> None:
    paced = Paced()
    with paced.emit as emit:
        for applied, seconds in windows:
            paced.now += seconds
            emit(steps(applied=applied))
    received = [event for event in paced.sent if isinstance(event, StepStats)]
    assert sum(event.applied for event in received) == sum(applied for applied, _ in windows)
