"""Which runs lose their weights or their folder, and what is never removed."""

import itertools
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from genesis_fp16.daemon.daemon import Daemon
from genesis_fp16.daemon.run_log import RunLogger
from genesis_fp16.domain.guard import Decision, GuardState
from genesis_fp16.domain.run import Ending, Run, RunState, RunTransition
from genesis_fp16.metrics import Metrics
from genesis_fp16.plugins.watch import PluginWatch
from genesis_fp16.runs.retention import WORK_SECONDS, Retention
from genesis_fp16.runs.run_folder import WEIGHTS_REMOVED, weights_removal_reason
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from tests.genesis_fp16.new_store import new_store

KEPT = ["attempts/1/events.ndjson", "attempts/1/worker.log", "attempts/1/spec.json"]
KEPT += ["snapshot.json", "profile/trace.json"]
WEIGHTS = ["checkpoints/step-0000000001.pt", "checkpoints/step-0000000001.shards-ab/rank-0"]
WEIGHTS += ["checkpoints.set-aside-1/step-0000000001.pt", "best-epoch.pt", ".best-epoch.pt.0a1b"]
WEIGHTS += ["at-start/published/model.safetensors"]
DAY_SECONDS = 86400.0


class Clock:
    """Unix time, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now

    def pass_days(self, days: float) -> None:
        self.now += days * DAY_SECONDS


class Runs:
    """Runs in a real store, with real files."""

    def __init__(self, settings: Settings, store: Store, clock: Clock) -> None:
        self.settings, self.store, self.clock = settings, store, clock
        self.folder = settings.home.absolute() / "runs"

    def write(self, run: Run, names: Sequence[str] = (*KEPT, *WEIGHTS)) -> Run:
        for name in names:
            path = self.folder / run.id / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * 100)
        return run

    def end(
        self,
        agent: str = "a",
        run: Run | None = None,
        names: Sequence[str] = (*KEPT, *WEIGHTS),
        **verdict: RunState,
    ) -> Run:
        run = run or self.store.enqueue(agent, first_seed=0)
        attempt = self.store.begin_attempt(run.id, f"incarnation-{run.id}")
        assert attempt is not None
        self.write(run, names)
        ended = RunTransition(**{"state": RunState.SUCCEEDED} | verdict)
        self.store.end_attempt(attempt, Ending(), ended, finished_at=self.store.now())
        return run

    def queue(self, agent: str = "a") -> Run:
        return self.store.enqueue(agent, first_seed=0)

    def files(self, run: Run) -> list[str]:
        found = (self.folder / run.id).rglob("*")
        return sorted(str(p.relative_to(self.folder / run.id)) for p in found if p.is_file())

    def whole(self, *runs: Run) -> list[bool]:
        return [self.files(run) == sorted(KEPT + WEIGHTS) for run in runs]

    def there(self, *runs: Run) -> list[bool]:
        return [(self.folder / run.id).exists() for run in runs]

    def retention(self, keep: int, days: int = 90, seconds_per_step: float = 0.0) -> Retention:
        kept = {"keep_runs": keep, "keep_run_days": days}
        times = itertools.count(0.0, seconds_per_step)
        return Retention(self.store, self.settings.model_copy(update=kept), lambda: next(times))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(home_settings: Settings, clock: Clock) -> Iterator[Store]:
    with closing(new_store(home_settings, clock)) as store:
        yield store


@pytest.fixture
def runs(home_settings: Settings, store: Store, clock: Clock) -> Runs:
    return Runs(home_settings, store, clock)


def settle(retention: Retention) -> Retention:
    for _ in range(8):
        retention.tick()
    return retention


def test_all_but_the_newest_lose_their_weights_and_nothing_else(runs: Runs) -> None:
    old, *newest = [runs.end() for _ in range(3)]
    other = runs.end("b")
    with capture_logs() as lines:
        settle(runs.retention(2))
    assert runs.files(old) == sorted([*KEPT, WEIGHTS_REMOVED])
    assert runs.whole(*newest, other) == [True] * 3
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
    assert weights_removal_reason(runs.folder / other.id) == ""
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


def test_unfinished_runs_keep_their_weights_and_do_not_count(runs: Runs, store: Store) -> None:
    interrupted = runs.end(state=RunState.QUEUED)
    ended = runs.end("a")
    waiting, running = runs.write(runs.queue()), runs.write(runs.queue())
    assert store.begin_attempt(running.id, "i")
    store.move(running.id, RunState.RUNNING)
    empty = runs.queue()
    store.move(empty.id, RunState.CANCELLED)
    unknown = runs.folder / "20260101T000000-00000000" / "checkpoints" / "step-1.pt"
    unknown.parent.mkdir(parents=True)
    unknown.touch()
    settle(runs.retention(1))
    assert runs.whole(interrupted, ended, waiting, running) == [True] * 4
    assert unknown.exists()


def test_a_run_that_its_twin_waits_to_repeat_keeps_them(runs: Runs, store: Store) -> None:
    repeated = runs.end()
    twin = store.enqueue_baseline(store.run(repeated.id))
    newest = runs.end()
    retention = settle(runs.retention(1))
    assert runs.whole(repeated, newest) == [True, True]
    runs.end(run=twin)
    retention.on_run_state("a", twin.id, "succeeded")
    settle(retention)
    assert runs.whole(repeated, newest, twin) == [False, False, True]


def test_runs_that_the_guard_names_stay_until_it_watches_again(runs: Runs, store: Store) -> None:
    def decide(state: GuardState, run: Run | None) -> None:
        run_id = run.id if run else ""
        store.guard.add(Decision(agent="a", state=state, at=store.now(), run_id=run_id))

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


def test_links_are_neither_followed_nor_removed(runs: Runs, tmp_path: Path) -> None:
    old, linked_folder, linked_run = [runs.end() for _ in range(3)]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    treasure = elsewhere / "step-0000000009.pt"
    treasure.touch()
    inside = runs.folder / old.id / "checkpoints" / "step-0000000002.pt"
    inside.symlink_to(treasure)
    folder = runs.folder / linked_folder.id / "checkpoints"
    folder.rename(elsewhere / "checkpoints")
    folder.symlink_to(elsewhere / "checkpoints")
    (runs.folder / linked_run.id).rename(elsewhere / "run")
    (runs.folder / linked_run.id).symlink_to(elsewhere / "run")
    only_link = runs.queue()
    runs.store.move(only_link.id, RunState.CANCELLED)
    (runs.folder / only_link.id).mkdir()
    (runs.folder / only_link.id / "best-epoch.pt").symlink_to(treasure)
    runs.end()
    settle(runs.retention(1))
    assert runs.files(only_link) == ["best-epoch.pt"], "nothing is recorded as removed"
    assert treasure.exists()
    assert inside.is_symlink()
    assert not (runs.folder / old.id / WEIGHTS[0]).exists()
    assert (elsewhere / "checkpoints" / "step-0000000001.pt").exists()
    assert (elsewhere / "run" / "best-epoch.pt").exists()
    with capture_logs() as lines:
        settle(runs.retention(1))
    assert lines == []


@pytest.mark.parametrize("swapped", ["", "{run}", "{run}/checkpoints"])
@pytest.mark.parametrize("days", [0, 91])
def test_links_that_appear_after_a_look_are_not_followed(
    runs: Runs, tmp_path: Path, swapped: str, days: int
) -> None:
    """Between the choice of a run and its removal, it or a folder above it becomes a link."""
    old, _newest = runs.end(), runs.end()
    runs.clock.pass_days(days)
    retention = runs.retention(1)
    retention.tick()  # looks
    retention.tick()  # chooses
    folder = runs.folder / swapped.format(run=old.id)
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    folder.symlink_to(elsewhere)
    settle(retention)
    assert sorted(elsewhere.rglob("*")) == before


@pytest.fixture
def refuse(tmp_path: Path) -> Callable[[Path], object]:
    """Make a folder refuse writes."""
    if os.geteuid() == 0:  # may delete anything, but makes no file where a link lies
        return lambda folder: (folder / WEIGHTS_REMOVED).symlink_to(tmp_path / "nowhere")
    return lambda folder: folder.chmod(stat.S_IRUSR | stat.S_IXUSR)


def test_a_disk_error_is_logged_once_and_affects_no_other_run(runs: Runs, refuse) -> None:
    refused, old, _newest = [runs.end() for _ in range(3)]
    folder = runs.folder / refused.id
    refuse(folder)
    retention = runs.retention(1)
    with capture_logs() as lines:
        settle(retention)
        retention.on_run_state("a", old.id, "succeeded")
        settle(retention)
    folder.chmod(0o755)
    assert not (folder / WEIGHTS_REMOVED).exists()
    [failure] = [each for each in lines if each["event"] == "run_files_not_removed"]
    assert failure["folder"] == str(folder)
    assert "delete" in failure["remedy"]
    assert runs.whole(old) == [False]


def test_a_failing_store_only_delays_the_removal(runs: Runs, home_settings: Settings) -> None:
    old, _newest = runs.end(), runs.end()
    retention = runs.retention(1)
    retention.tick()
    with closing(sqlite3.connect(home_settings.home / "genesis.db")) as database:
        for table, step in (("guard_decisions", "choosing"), ("runs", "looking")):
            if step == "looking":
                retention.on_run_state("a", old.id, "succeeded")
            database.execute(f"ALTER TABLE {table} RENAME TO hidden")
            with pytest.raises(OperationalError):
                retention.tick()
            database.execute(f"ALTER TABLE hidden RENAME TO {table}")
    assert runs.whole(old) == [True]
    settle(retention)
    assert runs.whole(old) == [False]


# Folders


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
    [known, other] = [runs.store.run(run.id) for run in (old, newest)]
    assert "removed on 2027-04-16: the run had ended on 2027-01-15" in known.folder_removed
    assert "GENESIS_KEEP_RUN_DAYS=90" in known.folder_removed
    assert known.folder_removed.endswith("not among the agent's newest (GENESIS_KEEP_RUNS=1)")
    assert known.state == RunState.SUCCEEDED
    assert runs.store.attempts(old.id)
    assert other.folder_removed is None
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
    other = runs.end("b", names=KEPT)
    runs.clock.pass_days(91)
    settle(runs.retention(1))
    assert runs.there(whole, failed, failed_last, other) == [True, False, True, True]
    assert runs.whole(whole) == [True]


def test_a_run_that_is_referred_to_is_kept_at_any_age(runs: Runs, store: Store) -> None:
    repeated, named, forgotten = [runs.end() for _ in range(3)]
    store.enqueue_baseline(store.run(repeated.id))
    store.guard.add(Decision(agent="a", state=GuardState.TRIPPED, at=store.now(), run_id=named.id))
    unfinished = runs.write(runs.queue())
    runs.end()
    runs.clock.pass_days(1000)
    settle(runs.retention(1))
    assert runs.whole(repeated, named, unfinished) == [True] * 3
    assert runs.there(forgotten) == [False]


def test_a_run_whose_model_is_a_kept_version_keeps_its_facts(runs: Runs) -> None:
    published, other = runs.end(), runs.end()
    (runs.settings.home / "agents" / "a" / "versions" / published.id).mkdir(parents=True)
    runs.end()
    runs.clock.pass_days(1000)
    settle(runs.retention(1))
    assert runs.there(published, other) == [True, False]
    assert runs.files(published) == sorted([*KEPT, WEIGHTS_REMOVED])


def test_old_folders_are_removed_when_a_run_ends(runs: Runs) -> None:
    old, kept = runs.end(), runs.end()
    retention = settle(runs.retention(1))
    runs.clock.pass_days(91)
    newest = runs.end()
    retention.on_run_state("a", newest.id, "succeeded")
    settle(retention)
    assert runs.there(old, kept, newest) == [False, False, True]


def test_a_folder_with_a_link_loses_the_rest(runs: Runs, tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.write_text("gold")
    old, linked = runs.end(), runs.end()
    link = runs.folder / old.id / "link"
    link.symlink_to(treasure)
    (runs.folder / linked.id).rename(tmp_path / "run")
    (runs.folder / linked.id).symlink_to(tmp_path / "run")
    runs.end()
    runs.clock.pass_days(91)
    settle(runs.retention(1))
    assert list((runs.folder / old.id).iterdir()) == [link]
    assert treasure.read_text() == "gold"
    assert (tmp_path / "run" / "snapshot.json").exists()
    assert runs.store.run(linked.id).folder_removed is None
    runs.clock.pass_days(30)
    first_record = runs.store.run(old.id).folder_removed
    with capture_logs() as lines:
        settle(runs.retention(1))
    assert lines == []
    assert runs.store.run(old.id).folder_removed == first_record


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


def test_a_failing_store_loses_no_folder(runs: Runs, home_settings: Settings) -> None:
    old, _newest = runs.end(), runs.end()
    runs.clock.pass_days(91)
    retention = runs.retention(1)
    retention.tick()  # looks
    retention.tick()  # chooses
    with closing(sqlite3.connect(home_settings.home / "genesis.db")) as database:
        database.execute("ALTER TABLE runs RENAME TO hidden")
        with pytest.raises(OperationalError):
            retention.tick()
        database.execute("ALTER TABLE hidden RENAME TO runs")
    assert runs.whole(old) == [True]
    retention.tick()
    assert runs.there(old) == [False]


def test_a_folder_removed_by_somebody_else_is_logged(runs: Runs) -> None:
    old, _newest = runs.end(), runs.end()
    runs.clock.pass_days(91)
    retention = runs.retention(1)
    retention.tick()
    shutil.rmtree(runs.folder / old.id)
    with capture_logs() as lines:
        settle(retention)
    assert [each["event"] for each in lines] == ["run_files_not_removed"]


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


# Whatever somebody has put there


def test_folders_not_named_like_a_run_are_ignored(runs: Runs) -> None:
    old, _newest = runs.end(), runs.end()
    strange = [b"\xff", b"lost+found", old.id.encode() + b".bak"]
    for name in strange:
        (runs.folder / os.fsdecode(name) / "checkpoints").mkdir(parents=True)
    with capture_logs() as lines:
        settle(runs.retention(1))
    assert [each["event"] for each in lines] == ["weights_removed"]
    assert all((runs.folder / os.fsdecode(name)).exists() for name in strange)


def test_an_error_in_one_folder_is_logged_once_and_affects_no_other(runs: Runs) -> None:
    old, newest = runs.end(), runs.end()
    unnameable = os.fsdecode(b"\xff")
    (runs.folder / unnameable / "checkpoints").mkdir(parents=True)
    retention = runs.retention(1)
    retention.on_run_state("a", unnameable, RunState.SUCCEEDED)
    with capture_logs() as lines:
        settle(retention)
        retention.on_run_state("a", newest.id, RunState.SUCCEEDED)
        settle(retention)
    assert sorted(each["event"] for each in lines) == ["run_files_not_removed", "weights_removed"]
    assert runs.whole(old, newest) == [False, True]


@pytest.mark.parametrize("finished_at", [-1e300, 1e300, float("-inf")])
def test_a_run_with_an_impossible_end_keeps_its_folder(
    runs: Runs, home_settings: Settings, finished_at: float
) -> None:
    wrong, old, newest = [runs.end() for _ in range(3)]
    with closing(sqlite3.connect(home_settings.home / "genesis.db")) as database:
        database.execute("UPDATE runs SET finished_at = ? WHERE id = ?", (finished_at, wrong.id))
        database.commit()
    runs.clock.pass_days(91)
    with capture_logs() as lines:
        retention = settle(runs.retention(1))
        retention.on_run_state("a", newest.id, RunState.SUCCEEDED)
        settle(retention)
    assert runs.there(wrong, old, newest) == [True, False, True]
    [trouble] = [each for each in lines if each["event"] == "run_files_not_removed"]
    assert trouble["folder"] == str(runs.folder / wrong.id)
    assert str(finished_at) in trouble["error"]


@pytest.mark.process
def test_deeply_nested_folders_are_removed(runs: Runs) -> None:
    old, _newest = runs.end(), runs.end()
    deepest = runs.folder / old.id
    for _ in range(1200):
        deepest /= "d"
        deepest.mkdir()
    runs.clock.pass_days(91)
    settle(runs.retention(1))
    assert runs.there(old) == [False]


def test_if_the_store_refuses_a_removal_only_that_removal_waits(
    runs: Runs, home_settings: Settings
) -> None:
    old, _newest = runs.end(), runs.end()
    with closing(sqlite3.connect(home_settings.home / "genesis.db")) as database:
        database.execute(
            "CREATE TRIGGER refuses BEFORE UPDATE OF folder_removed ON runs "
            "BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
    runs.clock.pass_days(91)
    settings = home_settings.model_copy(update={"keep_runs": 1})
    with closing(RunLogger(Console(stderr=True))) as run_logger:
        daemon = Daemon(settings, runs.store, PluginWatch(settings), Metrics(), run_logger)
        rounds = (daemon.round(float(now), reload=False) for now in range(1000))
        assert "refused" not in next(rounds)
        assert any("refused" in trouble for trouble in rounds)  # the removal takes some rounds
        assert "refused" in next(rounds)
        waiting = runs.queue()
        runs.store.request_cancel(waiting.id, actor="me", reason="a test")
        next(rounds)
    assert runs.whole(old) == [True]
    assert runs.store.run(waiting.id).state is RunState.CANCELLED
