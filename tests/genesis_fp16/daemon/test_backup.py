"""Backups that are made while runs are recorded, and put back as either kind of database."""

import json
import os
import random
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import delete

from genesis_fp16.daemon.backup import BackupError, back_up, restore
from genesis_fp16.domain.run import RunState
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store, StoreError, schema
from genesis_fp16.store.decisions import Change
from tests.genesis_fp16.postgres import on_each_database


def fill(store: Store, home: Path) -> dict[str, str]:
    """A run that ended, one under way with its files, one that waits; id by state."""
    done, active, waiting = (store.enqueue(agent, first_seed=3).id for agent in "abc")
    store.begin_attempt(done, "incarnation-1")
    store.move(done, RunState.RUNNING)
    store.move(done, RunState.SUCCEEDED)
    attempt = store.begin_attempt(active, "incarnation-2")
    store.update_attempt(attempt.incarnation, pid=1, pid_started_at=2.0)
    checkpoints = home / "runs" / active / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "step-7.pt").write_bytes(b"weights")
    (checkpoints.parent / "events.ndjson").write_text("{}\n")
    (home / "daemon.lock").touch()
    store.record_change(Change("me", "filled", "all", ""))
    return {"done": done, "active": active, "waiting": waiting}


def rows(store: Store) -> list[object]:
    return [replace(run, state=RunState.QUEUED) if run.active else run for run in store.runs()]


@on_each_database
def test_a_backup_is_put_back_and_runs_under_way_go_on(
    store: Store, database: Settings, tmp_path: Path
) -> None:
    ids = fill(store, database.home)
    facts, expected = back_up(database, tmp_path / "backup"), rows(store)
    assert facts.runs == 3
    elsewhere = database.model_copy(update={"home": tmp_path / "other"})
    if database.database_url is not None:
        with pytest.raises(StoreError, match="already has runs"):
            restore(elsewhere, tmp_path / "backup")
        with store._engine.begin() as connection:
            for table in reversed(schema.metadata.sorted_tables):
                connection.execute(delete(table))
    restored, requeued = restore(elsewhere, tmp_path / "backup")
    assert (restored.runs, requeued) == (3, 1)
    with closing(Store.open(elsewhere)) as other:
        assert other.runs() == expected
        assert other.run(ids["active"]).state is RunState.QUEUED
        [attempt] = other.attempts(ids["active"])
        assert (attempt.ending, attempt.pid) == ("restored from a backup", None)
        assert other.begin_attempt(ids["active"], "incarnation-3").number == 2
        other.record_change(Change("me", "restored", "all", ""))  # with a number of its own
        assert [one.action for one in other.overrides.audit(5)] == ["restored", "filled"]
    checkpoint = tmp_path / "other" / "runs" / ids["active"] / "checkpoints" / "step-7.pt"
    assert checkpoint.read_bytes() == b"weights"
    assert not (tmp_path / "other" / "daemon.lock").exists()
    assert ((tmp_path / "other").stat().st_mode & 0o777) == 0o700


@pytest.mark.process
def test_a_backup_of_postgresql_becomes_sqlite(postgres_settings: Settings, tmp_path: Path) -> None:
    with closing(Store.open(postgres_settings)) as store:
        fill(store, postgres_settings.home)
        expected = rows(store)
        back_up(postgres_settings, tmp_path / "backup")
    local = Settings(home=tmp_path / "local")
    restore(local, tmp_path / "backup")
    with closing(Store.open(local)) as store:
        assert store.runs() == expected


def test_files_and_rows_are_of_one_moment(store: Store, database: Settings, tmp_path: Path) -> None:
    """Two files that are always written as a pair, and the row after them, never disagree."""
    home, stop, begun = database.home, threading.Event(), threading.Event()
    pauses = random.Random(0)

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            for name in ("first", "second"):
                (home / f"{name}.json.new").write_text(str(number))
                (home / f"{name}.json.new").rename(home / f"{name}.json")
            with (home / "lines.ndjson").open("a") as lines:
                lines.write(f"{number}\n")
            store.record_change(Change("me", "counted", str(number), ""))
            begun.set()
            stop.wait(pauses.choice((0.0, 0.03, 0.6)))  # a slow disk needs the long ones

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert begun.wait(60)
        for attempt in range(5):
            folder = tmp_path / f"backup-{attempt}"
            back_up(database, folder)
            first, second = (
                int((folder / "home" / f"{name}.json").read_text()) for name in ("first", "second")
            )
            with closing(sqlite3.connect(folder / "genesis.db")) as saved:
                query = "SELECT coalesce(max(CAST(subject AS INTEGER)), 0) FROM audit"
                [[recorded]] = saved.execute(query)
            lines = (folder / "home" / "lines.ndjson").read_text().splitlines()
            assert 0 <= first - second <= 1
            assert recorded <= second, "what the database knows is there"
            assert int(lines[-1]) >= recorded
    finally:
        stop.set()
        writer.join()


def test_what_is_damaged_or_in_the_way_is_refused(
    store: Store, database: Settings, tmp_path: Path
) -> None:
    fill(store, database.home)
    folder = tmp_path / "backup"
    back_up(database, folder)
    with pytest.raises(BackupError, match="exists already"):
        back_up(database, folder)
    with pytest.raises(BackupError, match="is in the home"):
        back_up(database, database.home / "backup")
    with pytest.raises(BackupError, match="is not empty"):
        restore(database, folder)
    empty = Settings(home=tmp_path / "empty")
    with pytest.raises(BackupError, match="nothing to back up"):
        back_up(empty, tmp_path / "nothing")
    with pytest.raises(BackupError, match="is not a backup"):
        restore(empty, tmp_path)
    [events] = folder.rglob("events.ndjson")
    before = events.read_bytes()
    events.write_bytes(b"[]\n")
    with pytest.raises(BackupError, match=r"events\.ndjson of the backup is damaged"):
        restore(empty, folder)
    events.write_bytes(before)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"format": 2, "release": "9.0"}))
    with pytest.raises(BackupError, match=r"made by release 9\.0"):
        restore(empty, folder)
    escape = {"../../stolen": {"size": 0, "sha256": "0"}}
    (folder / "manifest.json").write_text(json.dumps(manifest | {"files": escape}))
    with pytest.raises(BackupError, match="outside of itself"):
        restore(empty, folder)
    assert not empty.home.exists()


def test_an_older_release_refuses_the_home_of_a_newer_one(
    store: Store, database: Settings, tmp_path: Path
) -> None:
    back_up(database, tmp_path / "backup")
    store.close()
    with closing(sqlite3.connect(database.home / "genesis.db")) as newer:
        newer.execute("UPDATE alembic_version SET version_num = '9999'")
        newer.commit()
    with pytest.raises(StoreError, match="install the release that wrote it, or a newer one"):
        Store.open(database)


def test_what_the_disk_refuses_is_told_in_a_line_and_nothing_partial_stays(
    store: Store, database: Settings, tmp_path: Path
) -> None:
    fill(store, database.home)
    (database.home / "data").symlink_to(tmp_path)
    (tmp_path / "afile").touch()
    for place in (Path("/proc/x/y"), tmp_path / "afile" / "x"):
        with pytest.raises(BackupError, match=f"the backup {place} cannot be made: .*: name a"):
            back_up(database, place)
    facts = back_up(database, tmp_path / "backup")
    assert facts.left_out == ["data"]
    with pytest.raises(BackupError, match=r"cannot be restored as .*: set GENESIS_HOME"):
        restore(Settings(home=Path("/proc/x/y")), tmp_path / "backup")
    [events] = (tmp_path / "backup").rglob("events.ndjson")
    os.mkfifo(events.with_name("other"))
    with pytest.raises(BackupError, match=r"named pipe.*: set GENESIS_HOME"):
        restore(Settings(home=tmp_path / "other"), tmp_path / "backup")
    events.unlink()
    os.mkfifo(events)
    with pytest.raises(BackupError, match="is not a regular file"):
        restore(Settings(home=tmp_path / "other"), tmp_path / "backup")
    assert not list(tmp_path.glob(".*"))
    assert not (tmp_path / "other").exists()
