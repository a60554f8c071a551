"""The listener, over real sockets."""

import gzip
import socket
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from genesis_fp16.daemon import http as observability
from genesis_fp16.daemon.http import ListenError, ObservabilityServer, make_app, start_http
from genesis_fp16.domain.run import RunState
from genesis_fp16.metrics import Metrics
from genesis_fp16.settings import Settings

ANY_PORT = Settings(metrics_port=0)


class Readiness:
    def __init__(self) -> None:
        self.answer = (True, "2 agents")

    def __call__(self) -> tuple[bool, str]:
        return self.answer


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def readiness() -> Readiness:
    return Readiness()


@pytest.fixture
def server(metrics: Metrics, readiness: Readiness) -> Iterator[ObservabilityServer]:
    server = start_http(ANY_PORT, metrics, readiness)
    yield server
    server.stop()


def ask(
    server: ObservabilityServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, str, str]:
    """Status, content type and body."""
    url = f"http://127.0.0.1:{server.server_port}{path}"
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.headers["Content-Type"], response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_metrics_in_both_formats(server: ObservabilityServer, metrics: Metrics) -> None:
    metrics.on_run_state("a", "r", RunState.STARTING)
    status, kind, body = ask(server, "/metrics")
    assert status == 200
    assert kind.startswith("text/plain")
    assert 'genesis_fp16_training_steps_total{agent="a"} 0.0' in body
    status, kind, body = ask(server, "/metrics", Accept="application/openmetrics-text")
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith("# EOF\n")


def test_an_address_that_is_too_long_is_refused_as_text(server: ObservabilityServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as client:
        client.sendall(b"GET /".ljust(65537, b"x"))  # no byte is left unread
        head, _, body = client.makefile().read().partition("\n\n")
    assert " 414 " in head
    assert "Content-Type: text/plain; charset=utf-8" in head
    assert body.endswith("; there are /metrics, /healthz and /readyz\n")
    assert "<" not in body


def test_metrics_are_compressed_for_clients_that_ask(
    server: ObservabilityServer, metrics: Metrics
) -> None:
    metrics.register_agent("a")
    url = f"http://127.0.0.1:{server.server_port}/metrics"
    request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.headers["Content-Encoding"] == "gzip"
        assert b"genesis_runs_total" in gzip.decompress(response.read())


def test_a_scrape_that_fails_is_counted_and_logged_once(
    server: ObservabilityServer, metrics: Metrics, tmp_path: Path
) -> None:
    metrics.watch_home(Path("no\0path"))
    with capture_logs() as logged:
        for _ in range(2):
            status, _, body = ask(server, "/metrics")
            assert status == 500
            assert "null byte" in body
    assert [entry["event"] for entry in logged] == ["scrape_failed"]
    metrics.watch_home(tmp_path)
    status, _, body = ask(server, "/metrics")
    assert status == 200
    assert "genesis_scrapes_failed_total 2.0" in body


def test_readiness_is_the_daemons(server: ObservabilityServer, readiness: Readiness) -> None:
    assert ask(server, "/readyz")[::2] == (200, "2 agents\n")
    readiness.answer = (False, "loading plugins")
    assert ask(server, "/readyz")[::2] == (503, "loading plugins\n")


def test_health_is_the_age_of_the_last_tick(metrics: Metrics, readiness: Readiness) -> None:
    now = [1000.0]
    app = make_app(metrics, readiness, clock=lambda: now[0])

    def status(path: str = "/healthz") -> str:
        seen: list[str] = []
        app(
            {"PATH_INFO": path, "REQUEST_METHOD": "GET"},
            lambda status, headers, error=None: seen.append(status),
        )
        return seen[0]

    assert status() == "200 OK"
    now[0] += observability.TICK_STALE_SECONDS
    assert status() == "200 OK"
    now[0] += 1
    assert status() == status("/readyz") == "503 Service Unavailable"
    metrics.loop_ticked(9e9, now[0])  # whatever the time of day, even if it is set back after
    assert status() == "200 OK"
    now[0] += observability.TICK_STALE_SECONDS + 1
    assert status() == "503 Service Unavailable"


def test_other_paths_and_methods_are_refused(server: ObservabilityServer) -> None:
    assert ask(server, "/")[0] == 404
    assert ask(server, "/metrics/../etc/passwd")[0] == 404
    assert ask(server, "/metrics", "POST")[0] == 405
    assert ask(server, "/healthz", "DELETE")[0] == 405
    assert b"\r\nAllow: GET, HEAD\r\n" in raw_answer(server, b"POST /metrics")
    for path in (b"/metrics", b"/healthz"):
        answer = raw_answer(server, b"HEAD " + path)
        assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\n"), "no body"


def raw_answer(server: ObservabilityServer, request: bytes) -> bytes:
    """The whole answer."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as client:
        client.sendall(request + b" HTTP/1.0\r\n\r\n")
        return b"".join(iter(lambda: client.recv(4096), b""))


def test_requests_and_clients_that_hang_up_are_not_logged(
    server: ObservabilityServer, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ask(server, "/metrics")[0] == 200
    with socket.create_connection(("127.0.0.1", server.server_port)) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n")
        reset = struct.pack("ii", 1, 0)  # on closing, at once
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    while server._open:
        time.sleep(0.01)
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python knows no IPv6")
def test_it_listens_on_ipv6(metrics: Metrics) -> None:
    try:
        server = start_http(
            ANY_PORT.model_copy(update={"metrics_host": "::1"}), metrics, Readiness()
        )
    except ListenError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    with socket.create_connection(("::1", server.server_port), timeout=60) as client:
        client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.0 200 OK")
    server.stop()


def test_hostile_clients_do_not_stall_it(server: ObservabilityServer) -> None:
    address = ("127.0.0.1", server.server_port)
    idle = [socket.create_connection(address) for _ in range(200)]
    for number, client in enumerate(idle):
        try:
            client.sendall(b"GET /metr" if number % 2 else b"\x00\xff" * 40000)
        except OSError:
            continue  # it was cut already
    assert ask(server, "/healthz")[0] == 200
    assert len(server._open) <= observability.MAX_CONNECTIONS + 1
    for client in idle:
        client.close()


def test_a_slow_client_is_disconnected_at_its_deadline(
    server: ObservabilityServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observability, "REQUEST_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as client:
        client.setblocking(False)
        cut = False
        give_up = time.monotonic() + 300
        while not cut and time.monotonic() < give_up:
            try:
                client.sendall(b"x")  # one byte now and then would outlive any read timeout
                cut = client.recv(1) == b""
            except BlockingIOError:
                time.sleep(0.05)
            except ConnectionError:
                cut = True
    assert cut


def test_port_in_use_names_the_setting(server: ObservabilityServer, metrics: Metrics) -> None:
    taken = Settings(metrics_port=server.server_port)
    with pytest.raises(ListenError, match="GENESIS_METRICS_PORT"):
        start_http(taken, metrics, Readiness())
