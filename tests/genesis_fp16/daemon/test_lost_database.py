"""The daemon as a process whose database, or lock, fails, is locked, or is gone."""

import signal
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from genesis_fp16.store.daemon_status import find_daemon

pytestmark = pytest.mark.process


def test_the_loop_survives_errors_of_its_database(start, until, notices) -> None:
    """It continues, but the watchdog is not fed."""
    daemon = start(NOTIFY_SOCKET=notices.getsockname().decode().replace("\0", "@"))
    until(lambda: daemon.lines("listener_started"))
    until(lambda: daemon.get("/readyz") == "serving")
    assert notices.recv(100) == b"READY=1"
    assert notices.recv(100) == b"WATCHDOG=1"
    with closing(sqlite3.connect(daemon.folder / ".genesis" / "genesis.db")) as database:
        database.execute("ALTER TABLE runs RENAME TO hidden")
        assert "no such table" in daemon.wait_for("store_failed")["error"]
        until(lambda: "no such table" in daemon.get("/readyz"))
        until(lambda: "genesis_store_up 0.0" in daemon.get("/metrics"))
        notices.setblocking(False)
        with suppress(BlockingIOError):  # sent while the database worked
            while notices.recv(100):
                pass
        for _ in range(2):
            tick = daemon.last_tick()
            until(lambda tick=tick: daemon.last_tick() != tick)
        with pytest.raises(BlockingIOError):
            notices.recv(100)
        notices.settimeout(300)
        database.execute("ALTER TABLE hidden RENAME TO runs")
    assert notices.recv(100) == b"WATCHDOG=1"
    until(lambda: daemon.get("/readyz") == "serving")
    until(lambda: "genesis_store_up 1.0" in daemon.get("/metrics"))
    assert len(daemon.lines("store_failed")) == 1, "not once for every round"


def test_a_corrupt_database_is_named_and_left_alone(start, tmp_path: Path) -> None:
    home = tmp_path / "daemon0" / ".genesis"
    home.mkdir(parents=True)
    (home / "genesis.db").write_text("not a database, and long enough to be read as one" * 50)
    code, log = start().end()
    assert code == 65
    assert "genesis.db" in log
    assert "move it away" in log
    assert "Traceback" not in log


def test_no_new_database_is_created_if_one_is_missing(start, tmp_path: Path) -> None:
    """Otherwise the rollbacks that operators have ordered would be forgotten."""
    home = tmp_path / "daemon0" / ".genesis"
    run = home / "runs" / "20261121T112607-4bb90ed8"
    run.mkdir(parents=True)
    code, log = start().end()
    assert code == 65
    assert f"{home}/genesis.db is gone, but {run}" in log
    assert "move it back" in log
    assert "Traceback" not in log
    assert not (home / "genesis.db").exists()


def test_a_locked_database_delays_neither_rollback_nor_exit(start, install_plugin, until) -> None:
    install_plugin("a")
    daemon = start(settings="GENESIS_AGENTS__A__SCHEDULE=every 1s\n")
    until(lambda: daemon.lines("listener_started"))
    until(lambda: daemon.get("/readyz") == "serving")
    with closing(sqlite3.connect(daemon.folder / ".genesis" / "genesis.db")) as database:
        database.isolation_level = None
        database.execute("BEGIN IMMEDIATE")
        daemon.wait_for("store_failed")
        until(lambda: "database is locked" in daemon.get("/readyz"))
        assert daemon.get("/healthz").startswith("the loop ticked")
        (daemon.folder / ".env").write_text("ENABLE_FP16_TRAINING=false\n")
        daemon.wait_for("settings_reloaded")
        daemon.process.send_signal(signal.SIGINT)
        code, log = daemon.end()
    assert code == 0
    assert "Traceback" not in log
    assert len(daemon.lines("store_failed")) <= 2, "once in the loop, once in the drain"


def test_a_database_locked_at_the_start_is_waited_for(
    start, install_plugin, until, tmp_path: Path
) -> None:
    install_plugin("a")
    home = tmp_path / "daemon0" / ".genesis"
    Store.open(Settings(home=home)).close()
    with closing(sqlite3.connect(home / "genesis.db")) as database:
        database.isolation_level = None
        database.execute("BEGIN IMMEDIATE")
        daemon = start(settings="GENESIS_AGENTS__A__SCHEDULE=every 1h\n")
        assert "locked" in daemon.wait_for("store_failed")["error"]
        daemon.wait_for("daemon_ready")
        assert not daemon.lines("agent_scheduled")
        database.execute("ROLLBACK")
    assert daemon.wait_for("agent_scheduled")["agent"] == "a"
    until(lambda: daemon.get("/readyz") == "serving")


@pytest.mark.parametrize("how", ["moved", "replaced"])
def test_a_database_that_was_moved_or_replaced_is_reported(start, until, how: str) -> None:
    """Otherwise an operator's rollback would go unnoticed to another file."""
    daemon = start()
    daemon.wait_for("daemon_ready")
    until(lambda: daemon.get("/readyz") == "serving")
    home, away = daemon.folder / ".genesis", daemon.folder / "away"
    away.mkdir()
    files = sorted(home.glob("genesis.db*"))
    for file in files:
        file.rename(away / file.name)
    if how == "replaced":
        Store.open(Settings(home=home)).close()
    error = daemon.wait_for("store_failed")["error"]
    assert f"{home}/genesis.db was moved" in error
    assert "move it back" in error
    until(lambda: "move it back" in daemon.get("/readyz"))
    until(lambda: "genesis_store_up 0.0" in daemon.get("/metrics"))
    until(lambda: "move it back" in find_daemon(home).trouble)
    for file in home.glob("genesis.db*"):
        file.unlink()
    for file in files:
        (away / file.name).rename(file)
    until(lambda: daemon.get("/readyz") == "serving")
    until(lambda: find_daemon(home).trouble == "")
    daemon.process.terminate()
    assert daemon.end()[0] == 0
    assert find_daemon(home) is None


@pytest.mark.parametrize("lost", ["removed", "replaced", "home"])
def test_a_daemon_whose_lock_keeps_nobody_out_stops(start, until, lost: str) -> None:
    daemon = start()
    home = daemon.folder / ".genesis"
    until(
        lambda: (status := find_daemon(home)) and not status.trouble
    )  # its status file is written
    if lost == "home":
        home.rename(daemon.folder / "gone")
    else:
        (home / "daemon.lock").unlink()
    if lost == "replaced":
        (home / "daemon.lock").touch()
        (home / "daemon.json").write_text("another's")
    code, log = daemon.end()
    assert code == 65
    assert "daemon.lock was removed" in log
    assert "Traceback" not in log
    if lost == "replaced":
        assert (home / "daemon.json").read_text() == "another's"
