"""Opens and migrates the database: SQLite with a write-ahead log, or PostgreSQL."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeAlias

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import SQLAlchemyError

from genesis_fp16.settings import Settings
from genesis_fp16.store.errors import StoreError, display_name, store_error
from genesis_fp16.store.home import refuse_foreign_folder

HEAD_REVISION = "0015"
BUSY_TIMEOUT_MILLISECONDS = 5000
_MIGRATION_MILLISECONDS = 60_000  # for another process to end its migration
_READS, _BUSY = "genesis_reads", "genesis_busy_milliseconds"  # execution options
_MIGRATION_LOCK = 0x67656E65_73697301  # any constant that no other program uses
_FILES_OF_RUNS = ("runs/[0-9]*T[0-9]*-*", "guard/*/*", "agents/*/replay")

# Options of libpq: a server that is gone, without a word, is given up after some seconds.
PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}

FileIdentity: TypeAlias = tuple[int, int]  # device and inode


def database_url(settings: Settings) -> URL:
    """URL of the database of *settings*; SQLite in the home by default."""
    if settings.database_url is None:
        return URL.create("sqlite", database=str(settings.home.absolute() / "genesis.db"))
    url = make_url(settings.database_url)
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def open_database(url: URL, busy_milliseconds: int = BUSY_TIMEOUT_MILLISECONDS) -> Engine:
    """Connect to the database, created if it is SQLite and missing, and migrate it.

    A statement waits *busy_milliseconds* for a lock: SQLite's write lock, or one of PostgreSQL.

    Raises:
        StoreError: It is corrupt, belongs to another program or a newer release, or does not
            answer.
    """
    try:
        if url.get_backend_name() == "sqlite" and url.database:
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        engine = _engine(url, busy_milliseconds)
        _migrate(engine, display_name(url))
    except (SQLAlchemyError, OSError, ModuleNotFoundError) as error:
        raise store_error(url, error) from error
    return engine.execution_options(**{_BUSY: busy_milliseconds})


def database_exists(settings: Settings) -> bool:
    """Whether a database may exist already; True for one on a server.

    A file without tables does not count: its creation was interrupted or is under way.

    Raises:
        StoreError: This user may not look.
    """
    url = database_url(settings)
    if url.get_backend_name() != "sqlite" or not url.database:
        return True
    try:
        return Path(url.database).exists() and not _is_empty(Path(url.database))
    except OSError as error:
        raise store_error(url, error) from error


def _is_empty(path: Path) -> bool:
    """Whether SQLite can read the file and finds no table in it."""
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0)
        ) as connection:
            return not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    except sqlite3.Error:  # opening it reports what is wrong, with the remedy
        return False


def check_is_database(url: URL) -> None:
    """Check that the file of a SQLite database still is one; pages in memory would hide that.

    Raises:
        StoreError: Something else was written over it; with the remedy.
    """
    path = Path(str(url.database)).absolute()
    uri = f"{path.as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=0)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").close()
    except sqlite3.Error as error:  # any other one, as of a lock, meets who uses the database
        if error.sqlite_errorcode in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise store_error(url, error) from error


def check_not_lost(settings: Settings) -> None:
    """Refuse to create a database in a home that was used with one, or in a foreign folder.

    Raises:
        StoreError: The database is missing although the home has been used, this user may not
            look, or the folder is not a home.
    """
    if database_exists(settings):
        return
    home, url = settings.home.absolute(), database_url(settings)
    leftover = next((path for pattern in _FILES_OF_RUNS for path in home.glob(pattern)), None)
    if leftover is not None:
        lost = "empty" if Path(str(url.database)).exists() else "gone"
        raise StoreError(
            f"database {display_name(url)} is {lost}, but {leftover} belongs to a run it recorded; "
            "move it back or restore it from a backup; to start without history and overrides, "
            f"move runs, guard, agents and rollbacks.json of {home} away until a new one exists"
        )
    refuse_foreign_folder(home)


@contextmanager
def explain_store_errors(settings: Settings) -> Iterator[None]:
    """Turn an error of SQLAlchemy in the block into one with a remedy.

    Raises:
        StoreError: For example, the database stays locked, or its disk is full.
    """
    try:
        yield
    except SQLAlchemyError as error:
        raise store_error(database_url(settings), error) from error


def read_connection(engine: Engine) -> Connection:
    """A connection for reading: it sees one state and does not wait for writers. Close it."""
    return engine.execution_options(**{_READS: True}).connect()


def _engine(url: URL, busy_milliseconds: int) -> Engine:
    if url.get_backend_name() != "sqlite":
        return _server_engine(url, busy_milliseconds)
    engine = create_engine(url, json_deserializer=_json_or_text)

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver's implicit BEGIN leaves DDL outside
        connection.text_factory = _lenient_text
        for pragma in (
            f"busy_timeout = {BUSY_TIMEOUT_MILLISECONDS}",
            "synchronous = NORMAL",
            "foreign_keys = ON",
        ):
            connection.execute(f"PRAGMA {pragma}").close()
        _write_ahead(connection)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # IMMEDIATE: a reader that becomes a writer fails at once instead of waiting.
        options = connection.get_execution_options()
        if _BUSY in options:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {options[_BUSY]}").close()
        connection.exec_driver_sql("BEGIN" if _READS in options else "BEGIN IMMEDIATE")

    return engine


def _server_engine(url: URL, busy_milliseconds: int) -> Engine:
    engine = create_engine(
        url,
        pool_pre_ping=True,
        json_deserializer=_json_or_text,
        connect_args={name: value for name, value in PATIENCE.items() if name not in url.query},
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: DBAPIConnection, _record: object) -> None:
        with closing(connection.cursor()) as cursor:
            cursor.execute(f"SET lock_timeout = {busy_milliseconds}")
        connection.commit()

    return engine


def _json_or_text(text: str) -> object:
    """Decode JSON; return text that is not JSON unchanged, which `RowReader` then reports."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _lenient_text(stored: bytes) -> str:
    """Decode text, with replacement characters: one wrong cell must not fail a whole query."""
    return stored.decode(errors="replace")


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to SQLite's write-ahead log; wait while another process does so.

    The busy timeout does not apply here: SQLite refuses at once where waiting might deadlock.
    """
    give_up = time.monotonic() + BUSY_TIMEOUT_MILLISECONDS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").close()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up:
                raise
            time.sleep(0.02)


def _migrate(engine: Engine, name: str) -> None:
    with read_connection(engine) as connection:
        if _revision(connection, name) == HEAD_REVISION:
            return
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SET LOCAL lock_timeout = {_MIGRATION_MILLISECONDS}"))
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
        revision = _revision(connection, name)
        if revision != HEAD_REVISION:
            _upgrade(connection, revision, name)


def _revision(connection: Connection, name: str) -> str | None:
    """The revision the database has; None for an empty one."""
    tables = inspect(connection).get_table_names()
    if "alembic_version" in tables and "schedule_state" in tables:
        return str(connection.scalar(text("SELECT version_num FROM alembic_version")))
    if tables:
        raise StoreError(
            f"database {name} belongs to another program, its tables are "
            f"{', '.join(sorted(tables))}: move it away, "
            "or set GENESIS_HOME or GENESIS_DATABASE_URL"
        )
    return None


def _upgrade(connection: Connection, revision: str | None, name: str) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in known:
        raise StoreError(
            f"database {name} has revision {revision}, this release supports {HEAD_REVISION}: "
            "install the release that wrote it, or a newer one"
        )
    command.upgrade(config, "head")


def changed_at_ns(path: str) -> int | None:
    """When the file at *path* was last written to, in Unix nanoseconds; None if it is not there."""
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return None


def file_identity(path: str | os.PathLike[str]) -> FileIdentity | None:
    """Device and inode of the file at *path*; None if it cannot be found."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
