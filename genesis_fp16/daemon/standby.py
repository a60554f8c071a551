"""A daemon that waits until the one that leads has ended, ready to take over."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import structlog

from genesis_fp16.daemon.control import check_tokens
from genesis_fp16.daemon.readiness import Readiness
from genesis_fp16.daemon.systemd import SystemdNotices
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.metrics import Metrics
from genesis_fp16.settings import Settings
from genesis_fp16.store import DaemonLock, StoreError
from genesis_fp16.store.database import database_url
from genesis_fp16.system.signals import Signals

POLL_SECONDS = 0.25
REPEAT_SECONDS = 60.0

log = structlog.get_logger()


class StandbyError(GenesisError, ValueError):
    """A standby daemon was asked for where it cannot know whether another one lives."""

    exit_code = os.EX_CONFIG


def check_standby(settings: Settings) -> None:
    """Refuse a standby without a database that several machines share, or that could not lead.

    Raises:
        StandbyError: The database is not on a PostgreSQL server.
        TokenError: Its control API may not listen.
    """
    if not settings.standby:
        return
    check_tokens(settings)
    if database_url(settings).get_backend_name() != "postgresql":
        raise StandbyError(
            "GENESIS_STANDBY needs a PostgreSQL database that all daemons share: set "
            "GENESIS_DATABASE_URL, or start without --standby and GENESIS_STANDBY"
        )


def wait_to_lead(
    lock: DaemonLock,
    signals: Signals,
    metrics: Metrics,
    readiness: Readiness,
    notices: SystemdNotices,
    check_hardware: Callable[[], None],
) -> bool:
    """Wait until this daemon may lead; it may now, unless a signal has come: then False.

    A database that does not answer is waited for, too. What *check_hardware* raises, once it is
    known, ends the wait: this daemon could not lead.
    """
    notices.send("READY=1")
    logged, log_at = "", 0.0
    while not signals.stop_count:
        now = time.monotonic()
        metrics.loop_ticked(time.time(), now)
        check_hardware()
        try:
            reason = lock.try_to_lead()
        except StoreError as error:
            reason = str(error)
        if not reason:
            readiness.problem = "starting"
            log.info("standby_leads")
            return True
        readiness.problem = f"standby: {reason}"
        kind = reason.partition("(")[0]
        if kind != logged or now >= log_at:
            logged, log_at = kind, now + REPEAT_SECONDS
            log.info("standby_waits", reason=reason)
        notices.send_watchdog()
        time.sleep(POLL_SECONDS)
    return False


def wait_for_workers(lock: DaemonLock, signals: Signals) -> bool:
    """Wait, with the lock held, for workers of a daemon elsewhere; False if a signal has come.

    Raises:
        StoreError: The lock is lost.
    """
    if (seconds := lock.seconds_to_wait()) and not signals.stop_count:
        cause = "a daemon elsewhere led before, and did not end in order"
        log.info("workers_awaited", seconds=f"{seconds:.1f}", cause=cause)
    while lock.seconds_to_wait() and not signals.stop_count:
        time.sleep(POLL_SECONDS)
    return not signals.stop_count
