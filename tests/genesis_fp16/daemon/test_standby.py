"""A standby daemon: where there can be one, and what it waits for; see also ``tests/e2e``."""

import os
import socket
from collections.abc import Iterator

import pytest

from genesis_fp16.daemon.api_tokens import TokenError
from genesis_fp16.daemon.readiness import Readiness
from genesis_fp16.daemon.standby import StandbyError, check_standby, wait_for_workers, wait_to_lead
from genesis_fp16.daemon.systemd import SystemdNotices
from genesis_fp16.metrics import Metrics
from genesis_fp16.plugins.probe import HardwareProbeError
from genesis_fp16.plugins.watch import PluginWatch
from genesis_fp16.settings import Settings
from genesis_fp16.store import DaemonLock
from genesis_fp16.system.signals import Signals


@pytest.fixture(autouse=True)
def _systemd(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Somebody who takes the notices."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as taker:
        taker.bind(f"\0genesis-standby-{os.getpid()}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@genesis-standby-{os.getpid()}")
        yield


@pytest.fixture
def signals() -> Iterator[Signals]:
    with Signals() as signals:
        yield signals


def test_a_standby_without_a_shared_database_is_refused(home_settings: Settings) -> None:
    check_standby(home_settings)
    with pytest.raises(StandbyError, match="GENESIS_DATABASE_URL") as caught:
        check_standby(home_settings.model_copy(update={"standby": True}))
    assert caught.value.exit_code == 78


def test_a_standby_that_could_not_lead_is_refused_before_it_waits(home_settings: Settings) -> None:
    """Its API has no token: it would end when it is needed."""
    url = "postgresql://me@127.0.0.1:1/none"
    settings = home_settings.model_copy(
        update={"standby": True, "database_url": url, "api_port": 9465}
    )
    with pytest.raises(TokenError, match="GENESIS_API_TOKEN"):
        check_standby(settings)


@pytest.mark.process
def test_a_standby_whose_api_cannot_listen_ends_before_it_is_needed(start, until) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        daemon = start(
            GENESIS_STANDBY="true",
            GENESIS_DATABASE_URL="postgresql://me@127.0.0.1:1/none",
            GENESIS_API_PORT=str(taken.getsockname()[1]),
            GENESIS_API_TOKEN="0123456789abcdef",
        )
        until(lambda: daemon.process.poll() is not None or daemon.lines("standby_waits"))
        assert not daemon.lines("standby_waits")
        code, log = daemon.end()
    assert code == 78
    assert "GENESIS_API_HOST and GENESIS_API_PORT" in log


def test_it_waits_for_the_home_and_a_signal_ends_the_wait(
    home_settings: Settings, signals: Signals
) -> None:
    readiness, metrics = Readiness(), Metrics()
    with SystemdNotices() as notices:
        lock = DaemonLock(home_settings)
        with DaemonLock(home_settings):
            signals.stop_count = 1
            assert not wait_to_lead(lock, signals, metrics, readiness, notices, lambda: None)
            assert lock.try_to_lead().startswith("another daemon")
        signals.stop_count = 0
        assert wait_to_lead(lock, signals, metrics, readiness, notices, lambda: None)
        assert readiness.problem == "starting"
        assert metrics.last_tick > 0.0, "it is alive for /healthz"
        assert lock.seconds_to_wait() == 0.0, "with SQLite, there are no workers elsewhere"
        assert wait_for_workers(lock, signals)
        lock.release()


def test_a_database_that_does_not_answer_is_waited_for(
    home_settings: Settings, signals: Signals
) -> None:
    pytest.importorskip("psycopg")
    url = "postgresql://me@127.0.0.1:1/none"
    lock = DaemonLock(home_settings.model_copy(update={"database_url": url}))
    readiness = Readiness()

    class Notices(SystemdNotices):
        def send_watchdog(self) -> None:
            """The first round is over."""
            signals.stop_count = 1

    with Notices() as notices:
        assert not wait_to_lead(lock, signals, Metrics(), readiness, notices, lambda: None)
    assert readiness.problem.startswith(
        "standby: database postgresql+psycopg://me@127.0.0.1:1/none"
    )
    assert home_settings.home.is_dir(), "what its probes find could not be kept"


def test_a_standby_whose_device_does_not_exist_ends_before_it_is_needed(
    home_settings: Settings, signals: Signals
) -> None:
    watch = PluginWatch(home_settings)
    watch.hardware_error = HardwareProbeError("cuda:99 does not exist", final=True)
    lock, readiness = DaemonLock(home_settings), Readiness()
    with SystemdNotices() as notices, pytest.raises(HardwareProbeError):
        wait_to_lead(lock, signals, Metrics(), readiness, notices, watch.check_hardware)
    lock.release()
