"""The metrics and health listener: ``/metrics``, ``/healthz``, ``/readyz``.

Each connection has a thread and a deadline, and their number is bounded, so that slow or hostile
clients delay only themselves.
"""

from __future__ import annotations

import gzip
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import structlog
from prometheus_client.exposition import choose_encoder, gzip_accepted

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.metrics import Metrics
from genesis_fp16.settings import Settings

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

TICK_STALE_SECONDS = 30.0
REQUEST_SECONDS = 10.0
MAX_CONNECTIONS = 64

log = structlog.get_logger()

Ready: TypeAlias = Callable[[], tuple[bool, str]]
_Request: TypeAlias = socket.socket | tuple[bytes, socket.socket]  # as socketserver has it


class ListenError(GenesisError, OSError):
    """The metrics address cannot be listened on."""

    exit_code = os.EX_CONFIG

    def __init__(self, host: str, port: int, cause: str) -> None:
        super().__init__(
            f"cannot serve metrics on {host}:{port}: {cause}; set GENESIS_METRICS_HOST and "
            "GENESIS_METRICS_PORT to a free address of this machine (port 0 takes a free one)"
        )


def start_http(settings: Settings, metrics: Metrics, ready: Ready) -> ObservabilityServer:
    """Listen, and serve from a new thread until `ObservabilityServer.stop`.

    Args:
        metrics: Metrics that ``/metrics`` shows; their last tick decides ``/healthz``.
        ready: Returns whether the daemon accepts work, and why not, for ``/readyz``.

    Raises:
        ListenError: The address is in use, or does not belong to this machine.
    """
    host, port = settings.metrics_host, settings.metrics_port
    try:
        server = ObservabilityServer((host, port))
    except OSError as error:  # includes an unknown host name
        raise ListenError(host, port, error.strerror or str(error)) from error
    server.set_app(make_app(metrics, ready))
    threading.Thread(target=server.serve_forever, args=(0.2,), name="metrics", daemon=True).start()
    return server


class ObservabilityServer(ThreadingMixIn, WSGIServer):
    """A WSGI server that bounds the time and the number of its connections."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._open: dict[_Request, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, _QuietHandler)

    def server_bind(self) -> None:
        """Bind; unlike the base class, without a DNS lookup of this machine's name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: _Request, client_address: object) -> None:
        """Serve in a new thread; if there are too many, close the oldest connection."""
        with self._lock:
            self._open[request] = time.monotonic() + REQUEST_SECONDS
            surplus = [*self._open][:-MAX_CONNECTIONS]
        for oldest in surplus:
            _shut_down(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: _Request) -> None:
        """Forget the connection and close it."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close connections past their deadline; called a few times a second."""
        now = time.monotonic()
        with self._lock:
            late = [request for request, deadline in self._open.items() if deadline < now]
        for request in late:
            _shut_down(request)

    def handle_error(self, request: _Request, client_address: object) -> None:
        """Ignore clients that hang up."""

    def stop(self) -> None:
        """Stop serving and close the port."""
        self.shutdown()
        self.server_close()


class _QuietHandler(WSGIRequestHandler):
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(message)s; there are /metrics, /healthz and /readyz\n"

    def log_message(self, format: str, *args: object) -> None:
        """Log no requests."""


def _shut_down(request: _Request) -> None:
    """Shut a connection down while a thread serves it."""
    if isinstance(request, socket.socket):
        with suppress(OSError):  # it has just ended
            request.shutdown(socket.SHUT_RDWR)


def make_app(
    metrics: Metrics, ready: Ready, clock: Callable[[], float] = time.monotonic
) -> WSGIApplication:
    """Make the application; *clock* returns monotonic seconds.

    Until `TICK_STALE_SECONDS` after the start the loop counts as ticking.
    """
    started = clock()
    logged: set[str] = set()  # failures of scrapes

    def healthy() -> tuple[bool, str]:
        age = clock() - max(metrics.last_tick, started)
        return age <= TICK_STALE_SECONDS, f"the loop ticked {age:.1f} s ago"

    def serving() -> tuple[bool, str]:
        ticks, text = healthy()
        return ready() if ticks else (False, text)

    checks = {"/healthz": healthy, "/readyz": serving}

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        extra: list[tuple[str, str]] = []
        if path != "/metrics" and path not in checks:
            status, text = "404 Not Found", "there are /metrics, /healthz and /readyz"
        elif method not in ("GET", "HEAD"):
            status, text = "405 Method Not Allowed", "only GET and HEAD"
            extra = [("Allow", "GET, HEAD")]
        elif path == "/metrics":
            try:
                headers, body = _scrape(metrics, environ)
            except Exception as error:  # of any kind: the next scrape may succeed
                metrics.scrape_failed()
                status, text = "500 Internal Server Error", f"the scrape failed: {error!r}"
                if text not in logged:
                    logged.add(text)
                    log.exception("scrape_failed")
            else:
                start_response("200 OK", headers)
                return [body] if method == "GET" else []
        else:
            good, text = checks[path]()
            status = "200 OK" if good else "503 Service Unavailable"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8"), *extra])
        return [f"{text}\n".encode()] if method != "HEAD" else []

    return app


def _scrape(metrics: Metrics, environ: WSGIEnvironment) -> tuple[list[tuple[str, str]], bytes]:
    """Headers and body in the format that the client prefers."""
    _encoder, content_type = choose_encoder(environ.get("HTTP_ACCEPT", ""))
    body = metrics.render(openmetrics=content_type.startswith("application/openmetrics-text"))
    headers = [("Content-Type", content_type)]
    if gzip_accepted(environ.get("HTTP_ACCEPT_ENCODING", "")):
        body = gzip.compress(body, compresslevel=1)
        headers.append(("Content-Encoding", "gzip"))
    return headers, body
