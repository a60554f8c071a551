"""One daemon per store: a file lock in the home, and an advisory lock with PostgreSQL."""

from __future__ import annotations

import json
import os
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from genesis_fp16.errors import GenesisError
from genesis_fp16.settings import Settings
from genesis_fp16.store.database import database_url
from genesis_fp16.store.failure import StoreError

_ADVISORY_KEY = 0x67656E65_73697302  # any constant that no other program uses
_HOLDER = text(
    "SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
    "WHERE l.locktype = 'advisory' AND l.granted "
    "AND l.classid::bigint << 32 | l.objid::bigint = :key"
)


class LockHeldError(GenesisError, RuntimeError):
    """Another daemon serves this store.

    Attributes:
        holder: Its pid, host and since when.
    """

    exit_code = os.EX_CANTCREAT

    def __init__(self, what: str, holder: str) -> None:
        super().__init__(
            f"{what} is served by another daemon ({holder}): stop that one, or give this one "
            "a GENESIS_HOME of its own"
        )
        self.holder = holder


class DaemonLock:
    """Held while a daemon serves; released by the kernel if it dies.

    Args:
        settings: Whose home and database to lock.
    """

    def __init__(self, settings: Settings) -> None:
        self._home = settings.home.absolute()
        self._url = database_url(settings)
        self._file = FileLock(self._home / "daemon.lock", timeout=0)
        self._connection: Connection | None = None
        self._identity: tuple[int, int] | None = None  # device and inode of the file locked

    @property
    def _holder_path(self) -> Path:
        return self._home / "daemon.json"

    def acquire(self) -> None:
        """Take the lock, at once or not at all.

        Raises:
            LockHeldError: Another daemon has it.
            StoreError: The home cannot be written, or the database does not answer.
        """
        try:
            self._home.mkdir(parents=True, exist_ok=True)
            self._file.acquire()
            self._identity = self._identity_at_path()
        except Timeout:
            raise LockHeldError(str(self._home), self._read_holder()) from None
        except OSError as error:
            raise StoreError(
                f"GENESIS_HOME {self._home} cannot be written: {error}; make it writable or "
                "name another folder"
            ) from error
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        try:
            if self._url.get_backend_name() == "postgresql":
                self._connection = self._lock_database(_in_words(holder))
            self._holder_path.write_text(json.dumps(holder))
        except BaseException:  # nothing may leave a lock behind that guards nothing
            self.release()
            raise

    def release(self) -> None:
        """Give the lock back; without it nothing happens."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._file.is_locked:
            if self._file_is_ours():  # else what lies there is another daemon's
                self._holder_path.unlink(missing_ok=True)
            self._file.release()

    def verify(self) -> None:
        """Make sure that the lock still keeps others out.

        A lock file that was removed or replaced does not, and a lost connection loses an
        advisory lock.

        Raises:
            StoreError: It is lost; stop serving.
        """
        if not self._file_is_ours():
            raise StoreError(
                f"the lock {self._file.lock_file} was removed or replaced while this daemon held "
                "it, so another may serve the same home: leave GENESIS_HOME alone and restart"
            )
        if self._connection is None:
            return
        try:
            self._connection.execute(text("SELECT 1"))
        except SQLAlchemyError as error:
            raise StoreError(f"the lock on the database is lost: {error}; restart") from error

    def __enter__(self) -> DaemonLock:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _identity_at_path(self) -> tuple[int, int] | None:
        try:
            found = Path(self._file.lock_file).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _file_is_ours(self) -> bool:
        return self._identity is not None and self._identity_at_path() == self._identity

    def _read_holder(self) -> str:
        try:
            return _in_words(json.loads(self._holder_path.read_text()))
        except (OSError, ValueError, KeyError):
            return "it has not said who it is yet"

    def _lock_database(self, holder: str) -> Connection:
        try:
            engine = create_engine(
                self._url,
                poolclass=NullPool,
                isolation_level="AUTOCOMMIT",
                connect_args={"application_name": f"genesis-fp16 {holder}"[:63]},
            )
            connection = engine.connect()
            if connection.scalar(text(f"SELECT pg_try_advisory_lock({_ADVISORY_KEY})")):
                return connection
            found = connection.scalar(_HOLDER, {"key": _ADVISORY_KEY})
            connection.close()
        except SQLAlchemyError as error:
            raise StoreError(f"the database cannot be locked: {error}") from error
        raise LockHeldError("the database", str(found or "which has just ended"))


def _in_words(holder: dict[str, object]) -> str:
    since = datetime.fromtimestamp(float(str(holder["since"])), UTC)
    return f"pid {holder['pid']} on {holder['host']} since {since:%Y-%m-%dT%H:%M:%SZ}"
