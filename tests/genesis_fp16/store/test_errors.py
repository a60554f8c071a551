"""Errors of a database that cannot be used: real locks, owners and limits."""

import errno
import os
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError

from genesis_fp16.settings import Settings
from genesis_fp16.store import Store, StoreError
from genesis_fp16.store.database import (
    database_exists,
    database_url,
    explain_store_errors,
    open_database,
)
from genesis_fp16.store.errors import display_name, store_error, user_name
from tests.genesis_fp16.new_store import new_store

NOBODY = 65534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Become a user who owns nothing, unless the tests do not run as root anyway."""
    if os.getuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def settings() -> Iterator[Settings]:
    """A home with a database, in a folder that everyone may enter."""
    with tempfile.TemporaryDirectory(prefix="genesis-home-") as folder:
        Path(folder).chmod(0o755)
        settings = Settings(home=Path(folder) / "home")
        new_store(settings).close()
        yield settings
        settings.home.chmod(0o755)


def test_a_locked_database_names_who_holds_it(settings: Settings) -> None:
    path = settings.home / "genesis.db"
    with closing(sqlite3.connect(path)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with (
            closing(Store.open(settings, busy_milliseconds=1)) as store,
            pytest.raises(StoreError, match=f"is locked; .*fuser {path}"),
            explain_store_errors(settings),
        ):
            store.enqueue("a", first_seed=0)


def test_the_remedy_for_a_full_disk_is_space(settings: Settings) -> None:
    engine = open_database(database_url(settings))
    with engine.connect() as connection:
        connection.execute(text("PRAGMA max_page_count = 1"))  # no page more than there are
        with pytest.raises(OperationalError) as caught:
            connection.execute(text("CREATE TABLE more AS SELECT randomblob(100000)"))
    engine.dispose()
    said = str(store_error(database_url(settings), caught.value))
    assert "disk is full; make room" in said
    assert "backup" not in said


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to mount a small disk")
def test_the_remedy_for_a_disk_that_fills_up_is_space(settings: Settings) -> None:
    """SQLite reports an I/O error if its shared memory has no space."""
    mounted = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(settings.home)]
    if subprocess.run(mounted, stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("this machine lets nobody mount a disk")
    try:
        Store.open(settings).close()
        with suppress(OSError):
            (settings.home / "fill").write_bytes(b"x" * 400_000)
        with pytest.raises(StoreError, match="disk I/O error; make room"):
            Store.open(settings)
    finally:
        subprocess.run(["umount", str(settings.home)], check=True)


@pytest.mark.parametrize("closed", ["file", "home"])
def test_a_user_without_access_learns_the_owner(settings: Settings, closed: str) -> None:
    path = settings.home / "genesis.db"
    for entry in settings.home.iterdir():
        entry.chmod(0o444)
    settings.home.chmod(0o555)
    blocked = path
    if closed == "home":
        settings.home.chmod(0o700 if os.getuid() == 0 else 0o000)
        blocked = settings.home

    def enqueue() -> None:
        if database_exists(settings):
            with explain_store_errors(settings), closing(Store.open(settings)) as store:
                store.enqueue("a", first_seed=0)

    with as_nobody(), pytest.raises(StoreError) as caught:
        enqueue()
    said = str(caught.value)
    owner = user_name(path.stat().st_uid if os.getuid() == 0 else os.getuid())
    assert f"{blocked} belongs to {owner} (mode " in said
    assert f"sudo -u {owner}" in said
    assert "backup" not in said


def test_a_home_that_cannot_be_created_names_the_folder_above(settings: Settings) -> None:
    settings.home.chmod(0o555)
    inside = Settings(home=settings.home / "new")
    with as_nobody(), pytest.raises(StoreError, match=f"{settings.home} belongs to"):
        Store.open(inside)


def test_something_else_in_its_place(settings: Settings) -> None:
    (settings.home / "file").touch()
    with pytest.raises(StoreError, match="regular file"):
        Store.open(Settings(home=settings.home / "file"))


@pytest.mark.parametrize("content", [b"", b"not a database" * 500])
def test_a_start_without_history_names_all_that_must_go(settings: Settings, content: bytes) -> None:
    """Rollbacks that stayed in force would refuse the settings of the new home."""
    (settings.home / "agents" / "a" / "replay").mkdir(parents=True)
    (settings.home / "genesis.db").write_bytes(content)
    with pytest.raises(StoreError, match=r"runs, guard, agents and rollbacks\.json"):
        Store.open(settings)


def test_a_user_without_a_name_is_a_number() -> None:
    assert user_name(987_654_321) == "uid 987654321"


def of_sqlite(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("it\n  failed")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [
        (of_sqlite(sqlite3.SQLITE_IOERR_WRITE), "check the disk of"),
        (of_sqlite(sqlite3.SQLITE_FULL), "make room on the disk of"),
        (OSError(errno.ENOSPC, "No space left"), "make room on the disk of"),
        (OSError(errno.EDQUOT, "Quota exceeded"), "make room on the disk of"),
        (of_sqlite(sqlite3.SQLITE_CORRUPT), "restore it from a backup"),
    ],
)
def test_each_failure_has_a_remedy(settings: Settings, cause: Exception, remedy: str) -> None:
    said = str(store_error(database_url(settings), cause))
    assert f"; {remedy}" in said
    assert "\n" not in said


def test_a_disk_of_unknown_space_is_not_called_full(tmp_path: Path) -> None:
    gone = make_url(f"sqlite:///{tmp_path}/gone/genesis.db")
    assert "check the disk" in str(store_error(gone, of_sqlite(sqlite3.SQLITE_IOERR)))


def test_a_server_is_named_without_its_secrets() -> None:
    url = make_url("postgresql://ann:secret@db/genesis?sslpassword=secret")
    assert display_name(url) == "postgresql://ann:***@db/genesis"
    said = str(store_error(url, OSError("refused")))
    assert "secret" not in said
    assert said.endswith("GENESIS_DATABASE_URL is right")


def test_access_to_the_log_is_checked_too(settings: Settings) -> None:
    path = settings.home / "genesis.db"
    settings.home.chmod(0o777)
    path.chmod(0o666)
    log = path.with_name("genesis.db-wal")
    log.touch(mode=0o400)
    log.chmod(0o400 if os.getuid() == 0 else 0o000)
    with as_nobody():
        said = str(store_error(database_url(settings), of_sqlite(sqlite3.SQLITE_READONLY)))
    assert f"{log} belongs to " in said


def test_a_folder_in_the_place_of_the_file(settings: Settings) -> None:
    path = settings.home / "genesis.db"
    path.unlink()
    path.mkdir()
    said = str(store_error(database_url(settings), of_sqlite(sqlite3.SQLITE_CANTOPEN)))
    assert "regular file" in said


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to mount a disk")
def test_a_disk_that_is_mounted_read_only(settings: Settings) -> None:
    mounted = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(settings.home)]
    if subprocess.run(mounted, stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("this machine lets nobody mount a disk")
    try:
        said = str(store_error(database_url(settings), OSError(errno.EROFS, "Read-only")))
    finally:
        subprocess.run(["umount", str(settings.home)], check=True)
    assert f"{settings.home} is on a disk that is mounted read-only" in said
