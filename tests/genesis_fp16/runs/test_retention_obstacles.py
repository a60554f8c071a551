"""What a retention meets: links, refused writes, failing stores, folders of somebody else."""

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from genesis_fp16.daemon.daemon import Daemon
from genesis_fp16.daemon.run_log import RunLogger
from genesis_fp16.domain.run import RunState
from genesis_fp16.metrics import Metrics
from genesis_fp16.plugins.watch import PluginWatch
from genesis_fp16.runs.run_folder import WEIGHTS_REMOVED
from genesis_fp16.settings import Settings
from tests.genesis_fp16.runs.retained_runs import WEIGHTS, Runs, settle


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
    [failure] = [line for line in lines if line["event"] == "run_files_not_removed"]
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
    assert [line["event"] for line in lines] == ["run_files_not_removed"]


def test_folders_not_named_like_a_run_are_ignored(runs: Runs) -> None:
    old, _newest = runs.end(), runs.end()
    strange = [b"\xff", b"lost+found", old.id.encode() + b".bak"]
    for name in strange:
        (runs.folder / os.fsdecode(name) / "checkpoints").mkdir(parents=True)
    with capture_logs() as lines:
        settle(runs.retention(1))
    assert [line["event"] for line in lines] == ["weights_removed"]
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
    assert sorted(line["event"] for line in lines) == ["run_files_not_removed", "weights_removed"]
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
    [trouble] = [line for line in lines if line["event"] == "run_files_not_removed"]
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
