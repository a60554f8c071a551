"""The end of an attempt, as its worker, its events and its daemon tell it."""

import os
from pathlib import Path

import pytest

from genesis_fp16.domain.attempt import Attempt, events_path
from genesis_fp16.domain.run import RunSummary, StopCause
from genesis_fp16.executors import ExitStatus
from genesis_fp16.runs.active_attempt import ActiveAttempt
from genesis_fp16.runs.attempt_progress import AttemptProgress
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from infrastructure.events import EventTail, EventWriter
from infrastructure.events.event import Finished, StepStats

STEP = StepStats(step=7, applied=7, loss_scale=1.0, precision="fp32")


@pytest.fixture
def attempt(store: Store) -> Attempt:
    run = store.enqueue("a", first_seed=0)
    attempt = store.begin_attempt(run.id, "one")
    assert attempt is not None
    return attempt


def test_the_last_event_of_a_worker_outlives_the_daemon_that_read_it(
    store: Store, home_settings: Settings, attempt: Attempt
) -> None:
    path = events_path(home_settings.home, attempt)
    path.parent.mkdir(parents=True)
    with EventWriter(path) as emit:
        emit(STEP)
        emit(Finished(outcome="misconfigured", error="no such file"))
    run = store.run(attempt.run_id)
    assert run is not None
    first = ActiveAttempt.follow(run, attempt, home_settings, 0.0)
    assert len(list(first.progress.read(1.0))) == 2
    offset, outcome = first.progress.tail.offset, first.progress.outcome
    store.save_progress(attempt, first.progress.summary, events_offset=offset, ending=outcome)

    run, [attempt] = store.run(run.id), store.attempts(run.id)
    assert run is not None
    second = ActiveAttempt.follow(run, attempt, home_settings, 0.0)
    second.end(ExitStatus())
    assert not second.over, "it must be read first"
    assert list(second.progress.read(1.0)) == []
    assert second.over
    assert second.ending(ExitStatus()).exit_code == 78
    assert second.progress.summary.error == "no such file"


def test_an_orphan_ends_when_it_wrote_last_but_not_in_the_future(
    store: Store, home_settings: Settings, attempt: Attempt
) -> None:
    run = store.run(attempt.run_id)
    assert run is not None
    active = ActiveAttempt.follow(run, attempt, home_settings, 0.0)
    active.mark_orphaned(1.0)
    path = events_path(home_settings.home, attempt)
    path.parent.mkdir(parents=True)
    path.touch()
    for modified, ended in ((50.0, 50.0), (2e9, 100.0)):
        os.utime(path, (modified, modified))
        assert active.ended_at(home_settings.home, 100.0) == ended


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
def test_an_end_by_a_full_disk_is_recognised(tmp_path: Path, code, last, full) -> None:
    path = tmp_path / "events.ndjson"
    if last:
        with EventWriter(path) as emit:
            emit(Finished(outcome=last))
    progress = AttemptProgress(EventTail(path, 0), RunSummary(), Settings(), 0.0)
    active = ActiveAttempt(run=None, attempt=None, progress=progress)
    active.stop_cause = StopCause.NO_PROGRESS
    list(active.progress.read(1.0))
    ending = active.ending(ExitStatus(exit_code=code))
    assert (ending.disk_full, ending.cause) == (full, StopCause.NO_PROGRESS)
