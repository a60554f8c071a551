"""Saves a database of either kind as a SQLite file, and puts such a file back as either kind."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, Integer, Row, Table, delete, func, insert, select

from genesis_fp16.domain.run import ACTIVE, RunState
from genesis_fp16.store import schema
from genesis_fp16.store.database import open_database, read_connection
from genesis_fp16.store.errors import StoreError, display_name

ROWS_AT_ONCE = 1000
_UNFLUSHED = "PRAGMA synchronous = OFF"
RESTORED = "restored from a backup"


def sqlite_url(path: Path) -> URL:
    """URL of the SQLite database at *path*."""
    return URL.create("sqlite", database=str(path))


def save(engine: Engine, target: Path) -> None:
    """Save what *engine* holds at one moment to the SQLite database *target*.

    It takes the place of what an earlier call saved there. The caller flushes the file.

    Raises:
        SQLAlchemyError, sqlite3.Error, OSError: It cannot be read or written.
    """
    if engine.dialect.name == "sqlite":
        with (
            closing(sqlite3.connect(str(engine.url.database), timeout=30)) as source,
            closing(sqlite3.connect(target)) as copy,
        ):
            copy.execute(_UNFLUSHED).close()
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE").close()  # one file, without a log
        return
    one_moment = engine.execution_options(isolation_level="REPEATABLE READ")
    with one_moment.connect() as source_connection:
        _copy_into(source_connection, target)
    with closing(sqlite3.connect(target)) as copy:
        copy.execute("PRAGMA journal_mode = DELETE").close()


def check(path: Path) -> None:
    """Check a saved database with SQLite's own means.

    Raises:
        StoreError: It is damaged.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as copy:
            problems = [row[0] for row in copy.execute("PRAGMA integrity_check")]
            problems += [str(row) for row in copy.execute("PRAGMA foreign_key_check")]
    except sqlite3.Error as error:
        raise StoreError(f"the saved database {path} cannot be read: {error}") from error
    if problems != ["ok"]:
        raise StoreError(f"the saved database {path} is damaged: {'; '.join(problems[:3])}")


def put_back(saved: Path, engine: Engine) -> None:
    """Copy all rows of *saved* into the empty database of *engine*, a server's.

    Raises:
        StoreError: It is not empty.
    """
    source = open_database(sqlite_url(saved))
    try:
        with read_connection(source) as rows, engine.begin() as target:
            if target.scalar(select(func.count()).select_from(schema.runs)):
                raise StoreError(
                    f"database {display_name(engine.url)} already has runs: name an empty one in "
                    "GENESIS_DATABASE_URL"
                )
            for table in _tables():
                _copy_rows(rows, target, table)
                _reset_sequence(target, table)
    finally:
        source.dispose()


def requeue_active(engine: Engine, now: float) -> int:
    """Let runs that were under way go on from their checkpoints, as no worker of theirs is here.

    The home that was backed up may still serve, and its workers are its own.

    Returns:
        Number of those runs.
    """
    runs, attempts = schema.runs, schema.attempts
    with engine.begin() as connection:
        connection.execute(
            attempts.update()
            .where(attempts.c.finished_at.is_(None))
            .values(finished_at=now, ending=RESTORED, waiting=None, pid=None, job=None)
        )
        requeued = connection.execute(
            runs.update()
            .where(runs.c.state.in_([state.value for state in ACTIVE]))
            .values(state=RunState.QUEUED.value)
        )
        connection.execute(schema.leader.delete())
        return requeued.rowcount


def _tables() -> list[Table]:
    return [table for table in schema.metadata.sorted_tables if table is not schema.leader]


def _copy_into(source: Connection, target: Path) -> None:
    engine = open_database(sqlite_url(target))
    try:
        with engine.connect() as connection:
            connection.connection.cursor().execute(_UNFLUSHED)  # before its transaction
            for table in reversed(_tables()):
                connection.execute(delete(table))
            for table in _tables():
                _copy_rows(source, connection, table)
            connection.commit()
    finally:
        engine.dispose()


def _copy_rows(source: Connection, target: Connection, table: Table) -> None:
    for rows in _batches(source, table):
        target.execute(insert(table), [row._asdict() for row in rows])


def _batches(source: Connection, table: Table) -> Iterator[list[Row[tuple[object, ...]]]]:
    result = source.execution_options(yield_per=ROWS_AT_ONCE).execute(select(table))
    for partition in result.partitions():
        yield list(partition)


def _reset_sequence(connection: Connection, table: Table) -> None:
    """Let the server count on after the rows that were put in with their own numbers."""
    keys = list(table.primary_key)
    if connection.dialect.name != "postgresql" or len(keys) != 1:
        return
    if isinstance(keys[0].type, Integer):
        sequence = func.pg_get_serial_sequence(table.name, keys[0].name)
        highest = select(func.max(keys[0])).scalar_subquery()
        connection.execute(select(func.setval(sequence, highest)).where(highest.isnot(None)))
