"""What `runs show` says of an attempt."""

from pathlib import Path

from genesis_fp16.daemon.attempt_summary import summarize_attempt
from genesis_fp16.domain.attempt import Attempt, events_path
from infrastructure.events import EventWriter
from infrastructure.events.event import Notice


def test_a_preempted_attempt_says_what_took_its_machine_away(tmp_path: Path) -> None:
    attempt = Attempt(
        run_id="r1",
        number=1,
        incarnation="a",
        started_at=1.0,
        finished_at=2.0,
        ending="exit code 75",
    )
    path = events_path(tmp_path, attempt)
    path.parent.mkdir(parents=True)
    assert summarize_attempt(tmp_path, attempt, 1e6)["ending"] == "exit code 75"
    with EventWriter(path) as write:
        fields = {"notice": "preempted: SIGUSR1"}
        write(Notice(level="warning", event="preemption_noticed", fields=fields))
    assert summarize_attempt(tmp_path, attempt, 1e6)["ending"] == "preempted: SIGUSR1"
