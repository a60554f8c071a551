"""Which runs lose their weights or their folder, and which keep them."""

import itertools
import os

import pytest
from structlog.testing import capture_logs

from genesis_fp16.domain.guard import Decision, GuardState
from genesis_fp16.domain.run import Run, RunState
from genesis_fp16.runs.retention import WORK_SECONDS
from genesis_fp16.runs.run_folder import WEIGHTS_REMOVED, weights_removal_reason
from tests.genesis_fp16.runs.retained_runs import DAY_SECONDS, KEPT, WEIGHTS, Runs, settle


def test_all_but_the_newest_lose_their_weights_and_nothing_else(runs: Runs) -> None:
    old, *newest = [runs.end() for _ in range(3)]
    of_b = runs.end("b")
    with capture_logs() as lines:
        settle(runs.retention(2))
    assert runs.files(old) == sorted([*KEPT, WEIGHTS_REMOVED])
    assert runs.whole(*newest, of_b) == [True] * 3
    assert lines == [
        {
            "event": "weights_removed",
            "log_level": "info",
            "agent": "a",
            "run_id": old.id,
            "freed_bytes": 100 * len(WEIGHTS),
        }
    ]
    assert "GENESIS_KEEP_RUNS=2" in weights_removal_reason(runs.folder / old.id)
    assert weights_removal_reason(runs.folder / of_b.id) == ""
    with capture_logs() as lines:
        settle(runs.retention(2))
    assert lines == []


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled", "timed_out", "crashed"])
def test_the_oldest_run_loses_its_weights_when_another_ends(runs: Runs, state: str) -> None:
    retention, first = settle(runs.retention(1)), runs.end()
    retention.on_run_state("a", first.id, "succeeded")
    settle(retention)
    assert runs.whole(first) == [True]
    second = runs.end(state=RunState(state))
    settle(retention)
    assert runs.whole(first) == [True], "the end of the second run was not announced"
    retention.on_run_state("a", second.id, state)
    settle(retention)
    assert runs.whole(first, second) == [False, True]


def test_one_run_at_a_time_the_oldest_first(runs: Runs) -> None:
    first, second, third = [runs.end() for _ in range(3)]
    retention = runs.retention(1)
    retention.tick()  # looks
    retention.tick()  # chooses
    assert runs.whole(first, second, third) == [True] * 3
    retention.tick()
    assert runs.whole(first, second, third) == [False, True, True]
    retention.tick()
    assert runs.whole(second, third) == [False, True]


def test_unfinished_runs_keep_their_weights_and_do_not_count(runs: Runs) -> None:
    interrupted = runs.end(state=RunState.QUEUED)
    ended = runs.end("a")
    waiting, running = runs.write(runs.queue()), runs.write(runs.queue())
    assert runs.store.begin_attempt(running.id, "i")
    runs.store.move(running.id, RunState.RUNNING)
    empty = runs.queue()
    runs.store.move(empty.id, RunState.CANCELLED)
    unknown = runs.folder / "20260101T000000-00000000" / "checkpoints" / "step-1.pt"
    unknown.parent.mkdir(parents=True)
    unknown.touch()
    settle(runs.retention(1))
    assert runs.whole(interrupted, ended, waiting, running) == [True] * 4
    assert unknown.exists()


def test_a_run_that_its_twin_waits_to_repeat_keeps_them(runs: Runs) -> None:
    repeated = runs.end()
    twin = runs.store.enqueue_baseline(runs.store.run(repeated.id))
    newest = runs.end()
    retention = settle(runs.retention(1))
    assert runs.whole(repeated, newest) == [True, True]
    runs.end(run=twin)
    retention.on_run_state("a", twin.id, "succeeded")
    settle(retention)
    assert runs.whole(repeated, newest, twin) == [False, False, True]


def test_runs_that_the_guard_names_stay_until_it_watches_again(runs: Runs) -> None:
    def decide(state: GuardState, run: Run | None) -> None:
        run_id = run.id if run else ""
        runs.store.guard.add(Decision(agent="a", state=state, at=runs.store.now(), run_id=run_id))

    long_ago, stormy, later, newest = [runs.end() for _ in range(4)]
    decide(GuardState.TRIPPED, long_ago)
    decide(GuardState.WATCHING, long_ago)
    decide(GuardState.TRIPPED, stormy)
    settle(runs.retention(1))
    assert runs.whole(long_ago, stormy, later, newest) == [False, True, False, True]
    decide(GuardState.PROBATION, None)
    settle(runs.retention(1))
    assert runs.whole(stormy) == [True]
    decide(GuardState.WATCHING, newest)
    settle(runs.retention(1))
    assert runs.whole(stormy, newest) == [False, True]


def test_a_run_that_ended_long_ago_loses_its_folder_and_stays_known(runs: Runs) -> None:
    old, newest = runs.end(), runs.end()
    runs.clock.pass_days(89)
    settle(runs.retention(1))
    assert runs.files(old) == sorted([*KEPT, WEIGHTS_REMOVED]), "not yet"
    runs.clock.pass_days(2)
    with capture_logs() as lines:
        settle(runs.retention(1))
    assert runs.there(old, newest) == [False, True]
    assert runs.whole(newest) == [True]
    [line] = lines
    assert (line["event"], line["run_id"]) == ("run_folder_removed", old.id)
    assert line["freed_bytes"] > 100 * len(KEPT)
    [known, recent] = [runs.store.run(run.id) for run in (old, newest)]
    assert "removed on 2027-04-16: the run had ended on 2027-01-15" in known.folder_removed
    assert "GENESIS_KEEP_RUN_DAYS=90" in known.folder_removed
    assert known.folder_removed.endswith("(GENESIS_KEEP_RUNS=1)")
    assert known.state == RunState.SUCCEEDED
    assert runs.store.attempts(old.id)
    assert recent.folder_removed is None
    with capture_logs() as lines:
        settle(runs.retention(1))
    assert lines == []


def test_weights_and_folder_may_be_removed_together(runs: Runs) -> None:
    old, _newest = runs.end(), runs.end()
    runs.clock.pass_days(91)
    settle(runs.retention(1))
    assert runs.there(old) == [False]


def test_at_0_days_no_folder_is_removed(runs: Runs) -> None:
    old, _newest = runs.end(), runs.end()
    runs.clock.pass_days(36500)
    settle(runs.retention(1, days=0))
    assert runs.files(old) == sorted([*KEPT, WEIGHTS_REMOVED])


def test_the_newest_runs_and_those_with_weights_stay(runs: Runs) -> None:
    whole = runs.end()
    failed, failed_last = [runs.end(names=KEPT, state=RunState.FAILED) for _ in range(2)]
    of_b = runs.end("b", names=KEPT)
    runs.clock.pass_days(91)
    settle(runs.retention(1))
    assert runs.there(whole, failed, failed_last, of_b) == [True, False, True, True]
    assert runs.whole(whole) == [True]


def test_a_run_that_is_referred_to_is_kept_at_any_age(runs: Runs) -> None:
    repeated, named, forgotten = [runs.end() for _ in range(3)]
    runs.store.enqueue_baseline(runs.store.run(repeated.id))
    runs.store.guard.add(
        Decision(agent="a", state=GuardState.TRIPPED, at=runs.store.now(), run_id=named.id)
    )
    unfinished = runs.write(runs.queue())
    runs.end()
    runs.clock.pass_days(1000)
    settle(runs.retention(1))
    assert runs.whole(repeated, named, unfinished) == [True] * 3
    assert runs.there(forgotten) == [False]


def test_a_run_whose_model_is_a_kept_version_keeps_its_facts(runs: Runs) -> None:
    published, superseded = runs.end(), runs.end()
    (runs.settings.home / "agents" / "a" / "versions" / published.id).mkdir(parents=True)
    runs.end()
    runs.clock.pass_days(1000)
    settle(runs.retention(1))
    assert runs.there(published, superseded) == [True, False]
    assert runs.files(published) == sorted([*KEPT, WEIGHTS_REMOVED])


def test_old_folders_are_removed_when_a_run_ends(runs: Runs) -> None:
    old, kept = runs.end(), runs.end()
    retention = settle(runs.retention(1))
    runs.clock.pass_days(91)
    newest = runs.end()
    retention.on_run_state("a", newest.id, "succeeded")
    settle(retention)
    assert runs.there(old, kept, newest) == [False, False, True]


@pytest.mark.parametrize("days", [0, 91])
def test_a_large_folder_is_removed_in_bounded_steps_also_by_the_next_daemon(
    runs: Runs, days: int
) -> None:
    names = [f"checkpoints/step-{number}.pt" for number in range(300)]
    old, newest = runs.end(names=names), runs.end()
    runs.clock.pass_days(days)
    retention = runs.retention(1, seconds_per_step=WORK_SECONDS / 40)
    ticks, left = 0, [300]
    while files := [name for name in runs.files(old) if name != WEIGHTS_REMOVED]:
        retention.tick()
        ticks += 1
        if len(files) < left[-1]:
            left.append(len(files))
        if len(left) == 4:
            retention = runs.retention(1, seconds_per_step=WORK_SECONDS / 40)
    assert max(before - after for before, after in itertools.pairwise(left)) < 45
    assert 8 <= ticks < 60
    settle(retention)
    assert runs.whole(newest) == [True]
    if days:
        assert runs.there(old) == [False]
        assert "GENESIS_KEEP_RUN_DAYS=90" in runs.store.run(old.id).folder_removed
    else:
        assert runs.files(old) == [WEIGHTS_REMOVED]


@pytest.mark.parametrize("of", ["preflights", "profiles", "labs"])
def test_folders_of_failed_measurements_are_removed_at_the_same_age(runs: Runs, of: str) -> None:
    measurements = runs.settings.home.absolute() / of
    old, new = measurements / "a-1", measurements / "a-2"
    for folder, days in ((old, 91), (new, 89)):
        (folder / "replay").mkdir(parents=True)
        (folder / "replay" / "1.jsonl").touch()
        os.utime(folder, times=(runs.clock.now - days * DAY_SECONDS,) * 2)
    settle(runs.retention(1, days=0))
    assert old.exists()
    settle(runs.retention(1))
    assert [old.exists(), new.exists()] == [False, True]
