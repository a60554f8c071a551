"""One daemon per store: a file lock in the home, and an advisory lock with PostgreSQL."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

import structlog
from filelock import FileLock, Timeout
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.precision import Device
from genesis_fp16.settings import Settings
from genesis_fp16.store.daemon_status import (
    LOCK_FILE,
    STARTING,
    STATUS_FILE,
    DaemonStatus,
    read_status,
)
from genesis_fp16.store.database import FileIdentity, database_url, file_identity
from genesis_fp16.store.errors import StoreError, store_error
from infrastructure.files import remove_abandoned, write_atomically

_WAIT_SECONDS = 0.1  # a command that checks whether a daemon serves holds the lock briefly
_ADVISORY_KEY = 0x67656E65_73697302  # any constant that no other program uses
_HOLDER = text(
    "SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
    "WHERE l.locktype = 'advisory' AND l.granted "
    "AND l.classid::bigint << 32 | l.objid::bigint = :key"
)

log = structlog.get_logger()


class LockHeldError(GenesisError, RuntimeError):
    """Another daemon serves this store.

    Attributes:
        holder: Pid, host and start time of that daemon.
    """

    exit_code = os.EX_CANTCREAT

    def __init__(self, what: str, holder: str) -> None:
        super().__init__(
            f"{what} is served by another daemon ({holder}): stop that daemon, or set another "
            "GENESIS_HOME for this one"
        )
        self.holder = holder


class DaemonLock:
    """Locks a home while a daemon serves it; the kernel releases the lock if the daemon dies."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._home = settings.home.absolute()
        self._url = database_url(settings)
        self._file = FileLock(self._home / LOCK_FILE, timeout=_WAIT_SECONDS)
        self._connection: Connection | None = None
        self._identity: FileIdentity | None = None  # of the locked file
        self._own = DaemonStatus()
        self._written: tuple[object, ...] | None = ()  # the last status; None after a failed write

    def acquire(self) -> None:
        """Take the lock without waiting.

        Raises:
            LockHeldError: Another daemon holds it.
            StoreError: The home cannot be written, or the database does not answer.
        """
        try:
            self._home.mkdir(parents=True, exist_ok=True)
            self._file.acquire()
            self._identity = file_identity(self._file.lock_file)
            remove_abandoned(self._home)
        except Timeout:
            raise LockHeldError(str(self._home), str(read_status(self._home))) from None
        except OSError as error:
            raise StoreError(
                f"GENESIS_HOME {self._home} cannot be written: {error}; make it writable or "
                "name another folder"
            ) from error
        self._own = DaemonStatus(pid=os.getpid(), host=socket.gethostname(), since=time.time())
        self._written = ()
        try:
            if self._url.get_backend_name() == "postgresql":
                self._connection = self._lock_database(str(self._own))
            self.write_status(self._settings, trouble=STARTING)
        except BaseException:  # a failed start must not keep the lock
            self.release()
            raise

    def write_status(
        self,
        settings: Settings,
        *,
        trouble: str = "",
        refused: str = "",
        scanned_at: float | None = None,
        probing: Mapping[str, float] | None = None,
        device: Device | None = None,
    ) -> None:
        """Write the holder's status for commands; after a failed write they see none.

        All arguments but *settings* are those of `DaemonStatus`.
        """
        status = (settings, trouble, refused, scanned_at, probing, device)
        if status == self._written or not self._file_is_ours():  # otherwise another's file is there
            return
        serving = self._own.with_settings(
            settings,
            trouble=trouble,
            refused=refused,
            scanned_at=scanned_at,
            probing=probing or {},
            device=device,
        )
        path = self._home / STATUS_FILE
        try:
            write_atomically(path, serving.model_dump_json())
        except OSError as error:
            with suppress(OSError):
                path.unlink(missing_ok=True)  # what is no longer true
            if self._written is not None:
                log.warning("status_not_written", error=str(error), remedy=f"see {path}'s disk")
            self._written = None
        else:
            self._written = status

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._file.is_locked:
            if self._file_is_ours():  # else the file belongs to another daemon
                (self._home / STATUS_FILE).unlink(missing_ok=True)
            self._file.release()

    def verify(self) -> None:
        """Check that the lock still excludes other daemons.

        It does not if the lock file was removed or replaced, or if the connection that holds an
        advisory lock is lost.

        Raises:
            StoreError: The lock is lost; stop serving.
        """
        if not self._file_is_ours():
            raise StoreError(
                f"the lock {self._file.lock_file} was removed or replaced while this daemon held "
                "it, so another daemon may serve the same home: restart this one, and do not "
                "remove files of GENESIS_HOME"
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

    def __exit__(self, *_error: object) -> None:
        self.release()

    def _file_is_ours(self) -> bool:
        return self._identity is not None and file_identity(self._file.lock_file) == self._identity

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
        except (SQLAlchemyError, ModuleNotFoundError) as error:
            raise store_error(self._url, error) from error
        raise LockHeldError("the database", str(found or "one that has just ended"))
