"""One daemon per store: a file lock in the home, and an advisory lock with PostgreSQL."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import structlog
from filelock import FileLock, Timeout

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
from genesis_fp16.store.errors import StoreError
from genesis_fp16.store.leadership import Leadership
from infrastructure.files import remove_abandoned, write_model

_WAIT_SECONDS = 0.1  # a command that checks whether a daemon serves holds the lock briefly

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
        self._leadership: Leadership | None = None  # with PostgreSQL, from the first try on
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
            self._lock_home()
            if holder := self._lock_database():
                raise LockHeldError("the database", holder)
            self.write_status(self._settings, trouble=STARTING)
        except BaseException:  # a failed start must not keep the lock
            self.release()
            raise

    def try_to_lead(self) -> str:
        """Take the lock if another daemon has ended, and wait for its workers; call it again.

        Returns:
            What there is to wait for; empty once this daemon may `begin`.

        Raises:
            StoreError: The home cannot be written, or the database does not answer.
        """
        try:
            if self._leadership is None:
                self._make_home()  # a standby keeps there what its probes find
            if holder := self._lock_database():
                return f"another daemon leads ({holder})"
            if seconds := self.seconds_to_wait():
                return f"workers of the daemon before may run for {seconds:.1f} s more"
            try:
                self._lock_home()
            except LockHeldError as error:
                self._break_lock_of_lost_leader()
                return f"another daemon still holds GENESIS_HOME ({error.holder})"
            self.write_status(self._settings, trouble=STARTING)
        except BaseException:
            self.release()
            raise
        return ""

    def seconds_to_wait(self) -> float:
        """Seconds for which workers of a daemon elsewhere may still run, with the lock held.

        Raises:
            StoreError: The lock is lost.
        """
        return self._leadership.seconds_to_wait() if self._leadership is not None else 0.0

    def begin(self, on_beat: Callable[[float], None]) -> None:
        """Lead: nobody else takes over while this process lives and the database answers.

        Args:
            on_beat: See `Leadership`; called with PostgreSQL only.

        Raises:
            StoreError: The lock is lost.
        """
        if self._leadership is not None:
            self._leadership.on_beat = on_beat
            self._leadership.begin()

    def _lock_home(self) -> None:
        if self._file.is_locked:
            return
        self._make_home()
        try:
            self._file.acquire()
            self._identity = file_identity(self._file.lock_file)
            remove_abandoned(self._home)
        except Timeout:
            raise LockHeldError(str(self._home), str(read_status(self._home))) from None
        except OSError as error:
            raise self._unwritable(error) from error
        self._own = DaemonStatus(pid=os.getpid(), host=socket.gethostname(), since=time.time())
        self._written = ()

    def _make_home(self) -> None:
        try:
            self._home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> StoreError:
        return StoreError(
            f"GENESIS_HOME {self._home} cannot be written: {error}; make it writable or "
            "name another folder"
        )

    def _break_lock_of_lost_leader(self) -> None:
        """Replace the home's lock file if its holder is the daemon that led the database before.

        It is suspended, or its machine is gone and the file server does not know that yet. If it
        goes on, it finds the file replaced, and ends.
        """
        holder = read_status(self._home)
        led = self._leadership.led_before if self._leadership is not None else ""
        if holder.pid is not None and led.startswith(f"pid {holder.pid} on {holder.host} "):
            log.warning("lock_broken", holder=str(holder), file=str(self._file.lock_file))
            Path(self._file.lock_file).unlink(missing_ok=True)

    def _lock_database(self) -> str:
        """Lock the database, if it is on a server; return who holds the lock otherwise."""
        if self._url.get_backend_name() != "postgresql":
            return ""
        if self._leadership is None:
            holder = DaemonStatus(pid=os.getpid(), host=socket.gethostname(), since=time.time())
            seconds = self._settings.takeover_seconds
            self._leadership = Leadership(self._url, str(holder), seconds)
        return self._leadership.try_lock()

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
            write_model(path, serving)
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
        if self._leadership is not None:
            self._leadership.release()
            self._leadership = None
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
        if self._leadership is not None:
            self._leadership.check()

    def __enter__(self) -> DaemonLock:
        self.acquire()
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    def _file_is_ours(self) -> bool:
        return self._identity is not None and file_identity(self._file.lock_file) == self._identity
