"""The database of one home, read and disturbed without the daemon's own code."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from benchmarks.takeover.postgres import PostgresServer

_BY_OTHERS = "pid <> pg_backend_pid() AND application_name <> 'torture'"
_LEADERSHIP = "application_name LIKE 'genesis-fp16 %'"  # the connection that holds the lock
_numbers = itertools.count()


class Database(Protocol):
    """Where the daemon of one home keeps its records.

    Attributes:
        url: Value of ``GENESIS_DATABASE_URL``; None for the default.
        locks: Ways in which another program may lock it.
    """

    url: str | None
    locks: Sequence[str]

    def read(self, *queries: str) -> list[list[dict[str, Any]]]:
        """Rows of each query, all of one moment; none while the database is not there yet."""

    def write(self, statement: str) -> int:
        """Execute a statement; the number of rows that it changed."""

    def locked(self, how: str) -> AbstractContextManager[None]:
        """Hold a lock, one of `locks`."""


class SqliteDatabase:
    """The default, a file in the home."""

    url: str | None = None
    locks: Sequence[str] = ("IMMEDIATE", "EXCLUSIVE")

    def __init__(self, home: Path) -> None:
        self._path = home / "genesis.db"

    def read(self, *queries: str) -> list[list[dict[str, Any]]]:
        """See `Database`."""
        if not self._path.exists():
            return [[] for _ in queries]
        uri = f"file:{self._path}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=60)) as connection:
            connection.row_factory = sqlite3.Row
            connection.isolation_level = None
            connection.execute("BEGIN")
            return [[dict(row) for row in connection.execute(query)] for query in queries]

    def write(self, statement: str) -> int:
        """See `Database`."""
        with closing(sqlite3.connect(self._path, timeout=60)) as connection:
            changed = connection.execute(statement).rowcount
            connection.commit()
            return changed

    @contextmanager
    def locked(self, how: str) -> Iterator[None]:
        """See `Database`."""
        with closing(sqlite3.connect(self._path, timeout=60)) as connection:
            connection.isolation_level = None
            connection.execute(f"BEGIN {how}")
            yield
            connection.execute("ROLLBACK")


class PostgresDatabase:
    """A new, empty database on a server that can be disturbed.

    Attributes:
        server: As given.
    """

    locks: Sequence[str] = ("EXCLUSIVE", "ACCESS EXCLUSIVE")

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self._connection: Any = None
        name = f"torture{next(_numbers)}"
        with closing(self._connect("postgres")) as connection:
            connection.autocommit = True
            connection.execute(f"CREATE DATABASE {name}")
        self._name = name
        self.url: str | None = f"postgresql://postgres@127.0.0.1:{server.port}/{name}"

    def _connect(self, name: str) -> Any:
        import psycopg
        from psycopg.rows import dict_row

        connection = psycopg.connect(
            host="127.0.0.1",
            port=self.server.port,
            user="postgres",
            dbname=name,
            application_name="torture",
            row_factory=dict_row,
        )
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return connection

    def _use(self, action: Callable[[Any], Any]) -> Any:
        """Act on our connection; on a new one if the server has ended since."""
        import psycopg

        for is_last in (False, True):
            if self._connection is None:
                self._connection = self._connect(self._name)
            try:
                with self._connection.transaction():
                    return action(self._connection)
            except psycopg.OperationalError:
                self._connection.close()
                self._connection = None
                if is_last:
                    raise
        raise AssertionError("unreachable")

    def read(self, *queries: str) -> list[list[dict[str, Any]]]:
        """See `Database`."""
        import psycopg

        try:
            return list(self._use(lambda c: [c.execute(query).fetchall() for query in queries]))
        except psycopg.errors.UndefinedTable:
            return [[] for _ in queries]

    def write(self, statement: str) -> int:
        """See `Database`."""
        return int(self._use(lambda connection: connection.execute(statement).rowcount))

    @contextmanager
    def locked(self, how: str) -> Iterator[None]:
        """See `Database`; what the daemon reads and writes in every round is locked."""
        with closing(self._connect(self._name)) as connection:
            connection.execute(f"LOCK TABLE runs, attempts IN {how} MODE")
            yield

    # Disturbances

    def cut(self, *, leadership: bool, others: bool) -> int:
        """End connections of the daemon, the one with its lock or the others; how many."""
        chosen = [_LEADERSHIP] * leadership + [f"NOT {_LEADERSHIP}"] * others
        return len(self._pids(chosen, "pg_terminate_backend(pid)"))

    def kill_backend(self) -> None:
        """Kill a process of the server, which then ends all connections and recovers."""
        pids = self._pids(["backend_type = 'client backend'"], "pid")
        os.kill(pids[0], signal.SIGKILL)

    def _pids(self, conditions: Sequence[str], what: str) -> list[int]:
        query = f"SELECT {what} AS it FROM pg_stat_activity WHERE {_BY_OTHERS} "
        query += f"AND datname = '{self._name}' AND ({' OR '.join(conditions)})"
        [rows] = self.read(query)
        return [row["it"] for row in rows]

    def restart(self, seconds: float) -> None:
        """Have the server end at once and start after *seconds*."""
        self.server.end()
        time.sleep(seconds)
        self.server.start()

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Stop the processes of the daemon's connections: they take and answer nothing."""
        pids = self._pids(["backend_type = 'client backend'"], "pid")
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        """Close our connection; the database goes with its server."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
