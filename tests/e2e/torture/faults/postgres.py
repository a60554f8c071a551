"""Faults of PostgreSQL: connections cut, the server killed, restarted, stopped, slow.

A daemon that loses the connection with its lock ends, since another daemon may lead; whoever
supervises it starts it again, as is done here.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from tests.e2e.torture.catalogue import fault
from tests.e2e.torture.databases import PostgresDatabase
from tests.e2e.torture.round import Round, TortureRun, moment

_ONLY: dict[str, Any] = {"databases": ("postgres",)}


def _database(r: Round) -> PostgresDatabase:
    database = r.service.database
    assert isinstance(database, PostgresDatabase)
    return database


def _start_ended(r: Round) -> None:
    """Wait for the daemon to end by itself, and start it as its supervisor does."""
    r.wait(lambda: r.service.status() is not None, "the daemon to end without its lock")
    r.note(f"ended with {r.service.status()}")
    r.check(
        r.service.status() == os.EX_DATAERR,
        "it ended with another code than that of a failing store",
    )
    r.service.start()


def _paced(r: Round) -> TortureRun:
    """A run that is under way for some seconds."""
    run = r.start(pace_seconds=0.03)
    if r.rng.random() < 0.7:
        r.training(run)
    return run


@fault("connections to PostgreSQL cut", quick=True, **_ONLY)
def connections_cut(r: Round) -> None:
    """The daemon connects again; no run notices."""
    run = _paced(r)
    run.attempts = {1}
    for _ in range(r.rng.randint(1, 4)):
        _database(r).cut(leadership=False, others=True)
        r.sleep(0.0, 0.6)


@fault("connection with the daemon's lock cut", quick=True, **_ONLY)
def lock_cut(r: Round) -> None:
    _paced(r)
    others = r.rng.random() < 0.5
    r.note("all connections" if others else "that one alone")
    _database(r).cut(leadership=True, others=others)
    _start_ended(r)


@fault("PostgreSQL restarted", quick=True, **_ONLY)
def server_restarted(r: Round) -> None:
    _paced(r)
    seconds = r.rng.uniform(0.0, 3.0)
    r.note(f"down for {seconds:.1f} s")
    _database(r).restart(seconds)
    _start_ended(r)


@fault("process of PostgreSQL killed", **_ONLY)
def backend_killed(r: Round) -> None:
    """The server ends all others, too, and recovers."""
    _paced(r)
    _database(r).kill_backend()
    _start_ended(r)


@fault("PostgreSQL down while the daemon starts", **_ONLY)
def down_at_start(r: Round) -> None:
    run = r.start(moment("batch", r.step(), "hold"))
    r.until_reached(run)
    r.service.end(r.rng.choice((signal.SIGKILL, signal.SIGTERM)))
    r.go_on(run)
    server = _database(r).server
    server.end()
    for _ in range(r.rng.randint(1, 2)):
        r.service.launch()
        r.wait(lambda: r.service.status() is not None, "the daemon to refuse to start")
        r.check(
            r.service.status() == os.EX_DATAERR,
            f"without a database it ended: {r.service.status()}",
        )
    server.start()
    r.service.start()


@fault("PostgreSQL silent for a moment", quick=True, **_ONLY)
def server_silent(r: Round) -> None:
    """Shorter than the daemon's patience: the run goes on."""
    run = _paced(r)
    run.attempts = {1}
    with _database(r).stalled():
        r.sleep(0.3, 1.5)


@fault("PostgreSQL silent for long", **_ONLY)
def server_silent_for_long(r: Round) -> None:
    """The daemon must not lead any more when another one may."""
    r.start(pace_seconds=0.1)
    r.training(r.runs[-1])
    with _database(r).stalled():
        r.wait(lambda: r.service.status() is not None, "the daemon to end without its lock")
        r.sleep(0.0, 1.0)
    r.note(f"ended with {r.service.status()}")
    r.service.start()


@fault("standby takes over", **_ONLY)
def standby(r: Round) -> None:
    """A second daemon with the same home waits, and leads when the first is gone."""
    run = r.start(moment("batch", r.step(), "hold"))
    r.until_reached(run)
    first = r.service.pid
    waits = r.service.log.count("standby_waits")
    r.service.launch("--standby")
    r.wait(lambda: r.service.log.count("standby_waits") > waits, "the second daemon to wait")
    r.go_on(run)
    r.sleep(0.0, 0.5)
    how = r.rng.choice((signal.SIGKILL, signal.SIGTERM, 0))
    r.note(f"signal {how}" if how else "its lock is cut")
    if how:
        os.kill(first or 0, how)
    else:
        _database(r).cut(leadership=True, others=False)
    r.wait(lambda: r.service.status(first) is not None, "the first daemon to end")
    r.wait(r.service.is_ready, "the second daemon to lead")
    r.wait(r.service.has_agents, "its agents to be ready")
