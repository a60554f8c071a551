"""Two daemons, one home."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from genesis_fp16.settings import Settings
from genesis_fp16.store import DaemonLock, LockHeldError, Store, StoreError
from genesis_fp16.store.database import database_url
from tests.preloaded import ForkedPopen

HOLD = """
import sys, time
from pathlib import Path
from genesis_fp16.settings import Settings
from genesis_fp16.store import DaemonLock
with DaemonLock(Settings(home=Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(home_settings: Settings):
    """Another process that holds the lock."""
    command = [sys.executable, "-P", "-c", HOLD, str(home_settings.home)]
    with ForkedPopen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


@pytest.mark.process
def test_a_second_daemon_is_told_who_holds_the_lock(holder, home_settings: Settings) -> None:
    with pytest.raises(LockHeldError, match=rf"pid {holder.pid} on .* since 20") as caught:
        DaemonLock(home_settings).acquire()
    assert caught.value.exit_code == 73
    assert f"pid {holder.pid}" in caught.value.holder


@pytest.mark.process
def test_a_killed_holder_holds_nothing(holder, home_settings: Settings) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait(timeout=300)
    with DaemonLock(home_settings) as lock:
        lock.verify()
        with pytest.raises(LockHeldError, match=f"pid {os.getpid()}"):
            DaemonLock(home_settings).acquire()
    with DaemonLock(home_settings):
        pass


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"GENESIS_HOME .*file"):
        DaemonLock(Settings(home=tmp_path / "file")).acquire()


def test_a_driver_that_is_missing_is_named_with_the_remedy(
    home_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    settings = home_settings.model_copy(update={"database_url": "postgresql://u:secret@h/d"})
    with pytest.raises(StoreError, match=r"u:\*\*\*@h.*genesis-fp16\[postgres\]"):
        DaemonLock(settings).acquire()


def test_one_daemon_per_postgres_database(
    postgres_settings: Settings, tmp_path: Path, until
) -> None:
    """Another home on, perhaps, another machine."""
    elsewhere = postgres_settings.model_copy(update={"home": tmp_path / "elsewhere"})
    Store.open(postgres_settings).close()
    with DaemonLock(postgres_settings) as lock:
        lock.begin(lambda _until: None)
        lock.verify()
        with pytest.raises(LockHeldError, match=f"pid {os.getpid()} on .* since 20"):
            DaemonLock(elsewhere).acquire()
        engine = create_engine(database_url(postgres_settings))
        with engine.begin() as connection:
            connection.execute(
                text("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
            )
        engine.dispose()

        def is_lost() -> bool:
            try:
                lock.verify()
            except StoreError as error:
                return "database is lost" in str(error)
            return False

        until(is_lost)
    second = DaemonLock(elsewhere)

    def is_taken() -> bool:
        with suppress(LockHeldError):  # the server may still be ending the connection
            second.acquire()
            return True
        return False

    until(is_taken)
    try:
        assert second.seconds_to_wait() > 0.0, "the first one has not ended in order"
    finally:
        second.release()
