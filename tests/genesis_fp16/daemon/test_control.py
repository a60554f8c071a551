"""Where the control API listens, and when its process starts, ends and starts again."""

import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from genesis_fp16.daemon.api_tokens import TokenError
from genesis_fp16.daemon.control import (
    LISTEN_AGAIN_SECONDS,
    SOCKET_NAME,
    ControlApi,
    ControlListenError,
    reserve_address,
)
from genesis_fp16.daemon.restart_delay import FIRST_RESTART_SECONDS
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store

pytestmark = pytest.mark.process
TOKEN = "0123456789abcdef"


@pytest.fixture
def control(home_settings: Settings, store: Store) -> Iterator[ControlApi]:
    with closing(ControlApi(home_settings)) as control:
        yield control


def ask(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(60)
    client.connect(str(path))
    client.sendall(b"GET /api/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    return client


def test_it_starts_with_the_first_request_and_again_after_its_death(
    control: ControlApi, home_settings: Settings, until: Callable[..., None]
) -> None:
    path = home_settings.home / SOCKET_NAME
    control.tick()
    assert control.pid is None, "nobody has asked"
    with closing(ask(path)) as client:
        control.tick()
        first = control.pid
        assert first is not None
        assert client.recv(12) == b"HTTP/1.1 200"
    os.kill(first, signal.SIGKILL)
    until(lambda: psutil.Process(first).status() == psutil.STATUS_ZOMBIE)
    with capture_logs() as logs, closing(ask(path)) as client:  # it waits while there is none
        until(lambda: control.tick() or control.pid not in (None, first))
        assert client.recv(12) == b"HTTP/1.1 200"
    assert [line["event"] for line in logs] == ["api_ended", "api_started"]
    assert f"{2 * FIRST_RESTART_SECONDS:g} s" in logs[0]["remedy"]
    second = control.pid
    control.close()
    assert not psutil.pid_exists(second)
    assert not path.exists()


def test_it_ends_with_its_daemon(home_settings: Settings, store: Store, until) -> None:
    """Also one that is killed; a new daemon opens the same socket."""
    daemon = os.fork()
    if daemon == 0:
        try:
            control = ControlApi(home_settings)
            client = ask(home_settings.home / SOCKET_NAME)
            control.tick()
            client.recv(12)
            (home_settings.home / "pid").write_text(str(control.pid))
            (home_settings.home / "pid").rename(home_settings.home / "api.pid")
            signal.pause()
        finally:
            os._exit(1)
    told = home_settings.home / "api.pid"
    until(told.exists)
    process = psutil.Process(int(told.read_text()))
    os.kill(daemon, signal.SIGKILL)
    os.waitpid(daemon, 0)
    until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
    with closing(ControlApi(home_settings)), closing(ask(home_settings.home / SOCKET_NAME)):
        pass


def test_only_the_owner_may_open_the_socket(control: ControlApi, home_settings: Settings) -> None:
    mode = (home_settings.home / SOCKET_NAME).stat().st_mode
    assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)


def test_a_long_path_of_the_home_takes_a_socket(home_settings: Settings) -> None:
    home = home_settings.home / ("long-" * 30)
    home.mkdir(parents=True)
    settings = home_settings.model_copy(update={"home": home})
    with closing(ControlApi(settings)):
        assert stat.S_ISSOCK((home / SOCKET_NAME).stat().st_mode)


def test_a_home_without_sockets_costs_the_socket_alone(home_settings: Settings) -> None:
    home_settings.home.mkdir()
    (home_settings.home / SOCKET_NAME).mkdir()
    with capture_logs() as logs, closing(ControlApi(home_settings)) as control:
        control.tick()
    assert [line["event"] for line in logs] == ["control_socket_failed"]
    assert "GENESIS_API_SOCKET=false" in logs[0]["remedy"]


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "::"])
def test_tcp_without_a_token_is_refused(home_settings: Settings, host: str) -> None:
    settings = home_settings.model_copy(update={"api_host": host, "api_port": 0})
    with pytest.raises(TokenError, match="GENESIS_API_TOKEN") as refused:
        ControlApi(settings)
    assert refused.value.exit_code == os.EX_CONFIG


def test_an_address_in_use_is_refused(home_settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        changes = {"api_port": taken.getsockname()[1], "api_token": TOKEN}
        with pytest.raises(ControlListenError, match="GENESIS_API_PORT"):
            ControlApi(home_settings.model_copy(update=changes))


def test_a_standby_that_leads_does_not_end_if_its_address_was_taken_meanwhile(
    home_settings: Settings, until: Callable[..., None]
) -> None:
    """Nobody else may be left to lead; the address is tried again."""
    settings = home_settings.model_copy(update={"api_port": 0, "api_token": TOKEN})
    settings.home.mkdir()
    now, reserved = [0.0], reserve_address(settings)
    assert reserved is not None
    address = reserved.getsockname()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
        with capture_logs() as logs:
            control = ControlApi(settings, lambda: now[0], reserved=reserved)
            control.tick()
            now[0] += LISTEN_AGAIN_SECONDS
            control.tick()
    with closing(control):
        failed = [line for line in logs if line["event"] == "control_api_failed"]
        assert len(failed) == 1, "not at each try"
        assert "GENESIS_API_PORT" in failed[0]["error"]
        now[0] += LISTEN_AGAIN_SECONDS
        control.tick()
        with socket.create_connection(address, timeout=60):
            until(lambda: control.tick() or control.pid is not None)
