"""Which of several daemons leads one PostgreSQL database, and when its successor may begin.

An advisory lock excludes others while the leader's connection lives. It alone is not enough: if the
connection is cut, the lock is free at once, while the leader's workers still run. So the leader
also counts beats in the table ``leader``, and each confirmed beat extends its workers' lease. When
the lease expires they are dead, also if the leader hangs. A successor begins when the count has not
changed for `takeover_seconds` by its own clock, a second after the lease has expired. No clocks of
two machines are compared.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import structlog
from sqlalchemy import (
    Connection,
    RowMapping,
    Update,
    create_engine,
    delete,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from genesis_fp16.store.errors import StoreError, store_error
from genesis_fp16.store.schema import leader

BEAT_SECONDS = 1.0
_MARGIN_SECONDS = 1.0  # between the end of the workers' lease and the successor's start
_WATCH_SECONDS = 0.25
_DRAIN_SECONDS = 2.0  # before the end of the lease at which the leader stops its workers
_HANGING_SECONDS = 1.5  # after the end of the lease, until a daemon that hangs is ended
_SUSPENDED_SECONDS = 2.0  # without a look of the watch: no thread of this process ran
_ADVISORY_KEY = 0x67656E65_73697302  # any constant that no other program uses
_HOLDER = text(
    "SELECT a.pid, a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
    "WHERE l.locktype = 'advisory' AND l.granted AND l.database = "
    "(SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND l.classid::bigint << 32 | l.objid::bigint = :key"
)
# A server that gets no answer from the leader's machine ends the connection: the lock is free.
_NOTICE_A_DEAD_PEER = (
    "SET tcp_keepalives_idle = 2",
    "SET tcp_keepalives_interval = 1",
    "SET tcp_keepalives_count = 3",
    "SET tcp_user_timeout = 4000",
    "SET statement_timeout = 3000",
)

log = structlog.get_logger()


class Leadership:
    """The lock, the beats and the workers' lease of one daemon.

    Args:
        holder: Text that names this daemon to others.
        takeover_seconds: Time without a beat after which a successor begins; the same everywhere.
        clock: Monotonic seconds.

    Attributes:
        on_beat: Called in another thread with the moment, in monotonic seconds, until which workers
            may run; once for each confirmed beat.
    """

    def __init__(
        self,
        url: URL,
        holder: str,
        takeover_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url, self._holder, self._takeover = url, holder, takeover_seconds
        self._clock = clock
        self._connection: Connection | None = None
        self._using = threading.Lock()  # the connection, by two threads
        self._locked = self._leads = False
        self._incarnation = secrets.token_hex(16)
        self._seen: RowMapping | None = None  # the row of the leader before
        self._seen_at = clock()
        self._begin_at = -math.inf
        self._confirmed = -math.inf
        self._lost = ""
        self._looked_at = math.inf  # when the watch last ran
        self._woke_at = -math.inf  # after it had not run for `_slept` seconds
        self._slept = 0.0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.on_beat: Callable[[float], None] = lambda _until: None

    @property
    def lease_until(self) -> float:
        """Moment, in monotonic seconds, until which workers may run."""
        return self._confirmed + self._takeover - _MARGIN_SECONDS

    @property
    def led_before(self) -> str:
        """Holder that led before, once it was silent for a while; empty if it was not."""
        seen = self._seen
        long_ago = self._clock() >= self._begin_at + _MARGIN_SECONDS
        return str(seen["holder"]) if self._locked and seen is not None and long_ago else ""

    def try_lock(self) -> str:
        """Take the lock if it is free; return who holds it otherwise, and empty text if this does.

        Raises:
            StoreError: The database does not answer, or the lock is lost.
        """
        if self._locked:
            self.check()
            return ""
        try:
            connection = self._connection or self._connect()
            take = text(f"SELECT pg_try_advisory_lock({_ADVISORY_KEY})")
            self._locked = bool(connection.scalar(take))
            knows_beats = self._observe(connection)
            if self._locked:
                self._begin_at = self._seen_at + self._takeover if self._must_wait() else -math.inf
                if knows_beats:
                    self._announce(connection)
                return ""
            holder = connection.execute(_HOLDER, {"key": _ADVISORY_KEY}).first()
            if holder is not None and self._seen is not None and self._is_silent():
                log.warning("leader_silent", holder=holder[1], consequence="its lock is ended")
                connection.scalar(select(func.pg_terminate_backend(holder[0])))
            return str(holder[1] if holder is not None else "one that has just ended")
        except (SQLAlchemyError, ModuleNotFoundError) as error:
            self._disconnect()
            raise store_error(self._url, error) from error

    def seconds_to_wait(self) -> float:
        """Seconds until the workers of the leader before are dead for sure; 0 if they are now.

        Raises:
            StoreError: The lock is lost.
        """
        self.check()
        return max(0.0, self._begin_at - self._clock())

    def begin(self) -> None:
        """Lead, with the lock held and the wait over; the database has this release's tables.

        Raises:
            StoreError: The lock is lost.
        """
        self.check()
        if self._connection is None:
            raise StoreError(
                "this daemon does not hold the lock on the database: start the daemon again"
            )
        with self._using:
            try:
                if self._thread is None:
                    self._announce(self._connection)
                self._connection.execute(self._own_row().values(place=place()))
            except SQLAlchemyError as error:
                raise store_error(self._url, error) from error
        self._leads = True

    def check(self) -> None:
        """Check, without asking the database, that this daemon still excludes others.

        Raises:
            StoreError: It does not, or may soon not; stop the workers.
        """
        if self._thread is None:
            return
        if not self._lost and self._clock() > self.lease_until - _DRAIN_SECONDS:
            self._lost = self._why_silent()
        if self._lost:
            raise StoreError(
                f"the lock on the database is lost: {self._lost}; start the daemon again, "
                "unless its supervisor does"
            )

    def release(self) -> None:
        """Let a successor begin; at once, if this daemon has led: its workers have ended."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)
            if self._thread.is_alive():  # the database hangs; the connection ends with the process
                self._connection = None
        if self._connection is not None and self._leads and not self._lost:
            with suppress(SQLAlchemyError):
                self._connection.execute(self._own_row().values(released=True))
        self._leads = False
        self._disconnect()

    def _announce(self, connection: Connection) -> None:
        """Replace the row of the leader before, and beat from now on.

        Without a place, since the workers of the leader before may still run: if this daemon dies
        before it leads, its successor has to wait for them, too.
        """
        row = {
            "id": 1,
            "incarnation": self._incarnation,
            "holder": self._holder,
            "place": "",
            "pid": os.getpid(),
            "pid_started_at": psutil.Process().create_time(),
            "beat": 0,
            "released": False,
        }
        sent = self._clock()
        connection.execute(delete(leader))
        connection.execute(insert(leader).values(row))
        self._confirmed = sent
        self._thread = threading.Thread(target=self._beat, name="leader", daemon=True)
        self._thread.start()
        self._looked_at = sent
        threading.Thread(target=self._end_if_hanging, name="leader-watch", daemon=True).start()

    def _own_row(self) -> Update:
        return update(leader).where(leader.c.incarnation == self._incarnation)

    def _beat(self) -> None:
        beat = self._own_row().values(beat=leader.c.beat + 1)
        while not self._stopping.wait(BEAT_SECONDS):
            sent = self._clock()
            try:
                with self._using:
                    connection = self._connection
                    updated = 0 if connection is None else connection.execute(beat).rowcount
            except Exception as error:  # of any kind: without beats another daemon begins
                cause = getattr(error, "orig", None) or error  # without the statement of SQL
                self._lost = self._lost or " ".join(str(cause).split())
            else:
                if updated != 1:
                    self._lost = self._lost or "another daemon leads"
            if self._lost:
                break
            self._confirmed = sent
            self.on_beat(self.lease_until)

    def _end_if_hanging(self) -> None:
        """End this process if it still leads after its workers' lease: its loop hangs.

        A query may wait for ever on a connection that passes nothing on; the lock of the home,
        which a successor may need, would stay taken. Or the whole process was suspended, and
        another daemon may lead by now.
        """
        while not self._stopping.wait(_WATCH_SECONDS):
            self._note_suspension()
            if self._leads and self._clock() > self.lease_until + _HANGING_SECONDS:
                event = "daemon_suspended" if self._was_suspended else "daemon_hangs"
                log.error(
                    event,
                    problem=self._lost or self._why_silent(),
                    consequence="this process ends now",
                    remedy="start it again",
                )
                os._exit(os.EX_DATAERR)

    def _note_suspension(self) -> None:
        """Take note that the watch runs, and for how long it did not, if that was long."""
        now = self._clock()
        slept, self._looked_at = now - self._looked_at, now
        if slept > _SUSPENDED_SECONDS:
            self._woke_at, self._slept = now, slept

    @property
    def _was_suspended(self) -> bool:
        """Whether this process did not run for most of the time since the last confirmed beat."""
        return self._slept_seconds > (self._clock() - self._confirmed) / 2

    @property
    def _slept_seconds(self) -> float:
        """Seconds since the last confirmed beat for which this process did not run."""
        asleep = self._clock() - self._looked_at  # until now, if the watch has not run yet
        if asleep > _SUSPENDED_SECONDS:
            return asleep
        return self._slept if self._woke_at > self._confirmed else 0.0

    def _why_silent(self) -> str:
        """Why no beat was confirmed for a while."""
        if self._was_suspended:
            slept = f"{self._slept_seconds:.1f} s"
            return f"this process did not run for {slept}: it, or its machine, was suspended"
        return f"the database has not answered for {self._clock() - self._confirmed:.1f} s"

    def _observe(self, connection: Connection) -> bool:
        """Note whether a leader has beaten since; return whether the database knows beats."""
        if self._seen is None and not inspect(connection).has_table(leader.name):
            return False  # it is new, or of a release without beats
        row = connection.execute(select(leader)).mappings().first()
        changed = row is not None and (
            self._seen is None
            or (row["incarnation"], row["beat"]) != (self._seen["incarnation"], self._seen["beat"])
        )
        if changed:
            self._seen_at = self._clock()
        self._seen = row
        return True

    def _must_wait(self) -> bool:
        """Whether workers of the leader before may run that this daemon cannot end itself."""
        row = self._seen
        if row is None or row["released"]:
            return False
        return row["place"] != place() or _is_running(row)

    def _is_silent(self) -> bool:
        return self._clock() - self._seen_at >= self._takeover

    def _connect(self) -> Connection:
        engine = create_engine(
            self._url,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args={
                "application_name": f"genesis-fp16 {self._holder}"[:63],
                "connect_timeout": 5,
                "keepalives_idle": 2,
                "keepalives_interval": 1,
                "keepalives_count": 3,
                "tcp_user_timeout": 4000,
            },
        )
        self._connection = engine.connect()
        for statement in _NOTICE_A_DEAD_PEER:
            self._connection.execute(text(statement))
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection, self._locked = self._connection, None, False
        if connection is not None:
            with suppress(SQLAlchemyError):
                connection.close()


def place() -> str:
    """Where process ids of this process mean the same: machine, boot and container."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        container = Path("/proc/self/ns/pid").readlink()
        return f"{socket.gethostname()} {boot} {container}"
    return socket.gethostname()


def _is_running(row: RowMapping) -> bool:
    """Whether the process of *row*, which is of this place, runs."""
    try:
        started_at: float = psutil.Process(row["pid"]).create_time()
    except psutil.Error:
        return False
    return bool(abs(started_at - row["pid_started_at"]) < 2.0)
