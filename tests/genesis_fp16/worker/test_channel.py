"""Commands in, progress and notices out; what takes stdin runs in a process of its own."""

import json
import subprocess
import sys

import pytest

from genesis_fp16.worker.channel import ProgressReporter, run_logger
from infrastructure.events.event import BaseEvent, Notice, Progress

INBOX = """
import json, sys, time
from genesis_fp16.worker import channel as worker_channel
worker_channel._ORPHAN_SECONDS = 0.3
notices = []
inbox = worker_channel.CommandInbox(notices.append)
assert sys.stdin.read() == ""
got = []
while len(got) < 2:
    got += [command.command for command in inbox.drain()]
print(json.dumps({"got": got, "notices": [notice.event for notice in notices]}), flush=True)
time.sleep(60)
"""


def test_inbox_reads_commands_and_leaves_when_nobody_stops_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INBOX],
        input='{"command": "checkpoint"}\nnonsense\n',
        capture_output=True,
        text=True,
        timeout=30,
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


def test_log_lines_reach_the_operator_but_no_flood_does(capfd: pytest.CaptureFixture[str]) -> None:
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
