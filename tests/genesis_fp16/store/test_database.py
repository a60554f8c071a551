"""Databases that are missing, current, older, newer, foreign or damaged."""

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

import genesis_fp16.store
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from genesis_fp16.store.database import (
    HEAD_REVISION,
    StoreError,
    check_not_lost,
    database_exists,
    database_url,
    open_database,
)
from genesis_fp16.store.errors import store_error
from genesis_fp16.store.schema import metadata
from tests.patience import crowding
from tests.preloaded import ForkedPopen

MIGRATIONS = Path(genesis_fp16.store.__file__).parent / "migrations"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "genesis.db"


def open_at(path: Path) -> None:
    open_database(make_url(f"sqlite:///{path}")).dispose()


def test_a_new_database_matches_the_schema(path: Path) -> None:
    engine = open_database(make_url(f"sqlite:///{path}"))
    with engine.begin() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
        assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
        indexes = "SELECT sql FROM sqlite_master WHERE name = 'one_active_run_per_agent'"
        assert "WHERE state IN" in str(connection.scalar(text(indexes)))
    engine.dispose()


def test_the_release_knows_its_own_head() -> None:
    assert ScriptDirectory(str(MIGRATIONS)).get_heads() == [HEAD_REVISION]


def test_opening_again_migrates_nothing(path: Path) -> None:
    open_at(path)
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO schedule_state VALUES ('a', 1.0)")
    connection.close()
    open_at(path)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT * FROM schedule_state").fetchall() == [("a", 1.0)]
    connection.close()


def test_a_database_of_the_first_release_is_migrated(path: Path) -> None:
    path.parent.mkdir()
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        runs = (("r1", "a", 1), ("r3", "a", 3), ("r2", "a", 2), ("s", "b", 9))
        for run_id, agent, created_at in runs:
            connection.execute(
                text(
                    "INSERT INTO runs (id, agent, trigger, state, seed, due_at, created_at, "
                    "available_at, active_seconds, failures, cancel_requested, steps) VALUES "
                    f"('{run_id}', '{agent}', 'manual', 'failed', 0, 0, {created_at}, "
                    "0, 0, 1, 0, 5)"
                )
            )
        connection.execute(
            text(
                "INSERT INTO overrides (precision, reason, actor, created_at) "
                "VALUES ('fp32', 'odd', 'me', 1)"
            )
        )
        command.upgrade(config, "0003")
        connection.execute(
            text(
                "INSERT INTO guard_decisions (agent, at, state, level, run_id, actor, reason, "
                "evidence) VALUES ('b', 1, 'tripped', 1, '', 'guard', 'storm', '')"
            )
        )
        fallback = '{"requested": "fp16", "effective": "fp32", "reason": "floor_policy"}'
        for changes in ("precision = :state", "state = 'running', precision = :state"):
            run_id = "r1" if "running" in changes else "r2"
            connection.execute(
                text(f"UPDATE runs SET {changes}, finished_at = :end WHERE id = '{run_id}'"),
                {"state": fallback, "end": None if "running" in changes else 4.0},
            )
    engine.dispose()
    with closing(Store.open(Settings(home=path.parent))) as store:
        fell_back = {run.id for run in store.runs() if run.fell_back_at is not None}
        assert fell_back == {"r1"}, "its worker's fallback holds until the run ends"
        assert {run.id: run.number for run in store.runs()} == {"r1": 1, "r2": 2, "r3": 3, "s": 1}
        assert store.runs("b")[0].half_steps == store.runs("b")[0].overflows == 0
        assert store.runs("b")[0].folder_removed is None
        assert store.guard.latest()["b"].demands_fp32
        [override] = store.overrides.in_force()
        assert (override.reason, override.next_run) == ("odd", False)
        assert store.enqueue("a", first_seed=0).number == 4
    with sqlite3.connect(path) as later:
        later.execute("UPDATE runs SET state = 'no_data' WHERE id = 's'")
        with pytest.raises(sqlite3.IntegrityError, match="known_state"):
            later.execute("UPDATE runs SET state = 'lost' WHERE id = 's'")
        assert later.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    later.close()


@pytest.mark.process
def test_several_processes_may_create_it_at_once(path: Path) -> None:
    code = (
        "import sys; from sqlalchemy.engine import make_url;"
        "from genesis_fp16.store.database import open_database;"
        "open_database(make_url(sys.argv[1]))"
    )
    command = [sys.executable, "-P", "-c", code, f"sqlite:///{path}"]
    processes = [ForkedPopen(command, stderr=subprocess.PIPE) for _ in range(4)]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert errors == [b""] * 4
    open_at(path)


def test_a_corrupt_file_is_named_with_the_remedy(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreError, match=r"genesis\.db .*move it away") as caught:
        open_at(path)
    assert caught.value.exit_code == 65
    assert path.read_bytes().startswith(b"this is no database"), "it must not be touched"


def test_a_damaged_database_is_named_with_the_remedy(path: Path) -> None:
    open_at(path)
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    with pytest.raises(StoreError, match=r"genesis\.db"):
        open_at(path)


def test_another_programs_database_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    with pytest.raises(StoreError, match="bookmarks"):
        open_at(path)


def test_a_newer_releases_database_is_refused(path: Path) -> None:
    open_at(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(StoreError, match="has revision 9999"):
        open_at(path)


def test_a_folder_in_the_way_is_named(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(StoreError, match=r"genesis\.db"):
        open_at(path)


def test_a_server_that_does_not_answer_is_named_without_its_password() -> None:
    pytest.importorskip("psycopg")
    url = make_url("postgresql+psycopg://me:hunter2@127.0.0.1:1/none")
    with pytest.raises(StoreError, match="GENESIS_DATABASE_URL") as caught:
        open_database(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.process
def test_a_locked_table_on_a_server_is_given_up_soon(postgres_settings: Settings) -> None:
    """As with SQLite: a change of precision must not wait for a lock."""
    Store.open(postgres_settings).close()
    engine = create_engine(database_url(postgres_settings))
    with (
        engine.connect() as connection,
        closing(Store.open(postgres_settings, busy_milliseconds=200)) as store,
    ):
        connection.execute(text("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE"))
        begun = time.monotonic()
        with pytest.raises(OperationalError, match="lock timeout") as refused:
            store.enqueue("a", first_seed=0)
        assert time.monotonic() - begun < 5 * crowding()
        connection.rollback()
        store.enqueue("a", first_seed=0)
    engine.dispose()
    error = store_error(database_url(postgres_settings), refused.value)
    assert "table locked" in str(error)


def test_the_url_of_the_database(tmp_path: Path) -> None:
    assert database_url(Settings(home=tmp_path)).database == str(tmp_path / "genesis.db")
    url = database_url(Settings(home=tmp_path, database_url="postgresql://h/d"))
    assert url.drivername == "postgresql+psycopg"


@pytest.mark.parametrize(
    "used", ["runs/20261121T112607-4bb90ed8", "guard/a/1.json", "agents/a/replay"]
)
@pytest.mark.parametrize("left", [None, "nothing", "no table"])
def test_an_empty_database_counts_as_missing(tmp_path: Path, used: str, left: str | None) -> None:
    """Otherwise its overrides would be lost."""
    settings = Settings(home=tmp_path)
    (tmp_path / used).mkdir(parents=True)
    path = tmp_path / "genesis.db"
    if left is not None:
        path.touch()
    if left == "no table":
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE t (x)")
            connection.execute("DROP TABLE t")
    assert not database_exists(settings)
    with pytest.raises(StoreError, match=f"is {'gone' if left is None else 'empty'}, but"):
        Store.open(settings)


def test_a_new_home_may_hold_other_things(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    for name in ("runs/lost+found", "guard", "agents/a"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "agents" / "a" / "preflight.json").touch()
    check_not_lost(settings)
    (tmp_path / "genesis.db").touch()
    Store.open(settings).close()
    assert database_exists(settings)


def test_a_database_that_was_overwritten_is_reported_before_it_is_used(tmp_path: Path) -> None:
    """A store that waits has its pages in memory."""
    settings, path = Settings(home=tmp_path), tmp_path / "genesis.db"
    with closing(Store.open(settings)) as store:
        store.verify()
        with closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        store.verify()
        content = path.read_bytes()
        path.write_bytes(bytes(len(content)))
        os.utime(path, (1, 1))  # the clock of a file system may be coarse
        for _ in range(2):
            with pytest.raises(StoreError, match=r"not a database; restore it from a backup"):
                store.verify()
        path.write_bytes(content)
        os.utime(path, (2, 2))
        store.verify()
        assert store.runs() == []
