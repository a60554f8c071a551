"""A receiver that speaks OTLP over HTTP with the official messages, and can be away or slow."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_REQUESTS: dict[str, type[Message]] = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}


class Receiver:
    """Collects what it is sent; *status* is what it answers, *stalled* holds its answers back."""

    def __init__(self, port: int = 0) -> None:
        self.status = 200
        self.stalled = threading.Event()
        self.requests = 0
        self.headers: list[dict[str, str]] = []
        self.received: dict[str, list[Any]] = {path: [] for path in _REQUESTS}
        self._server = _server(self, port)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def spans(self) -> list[Any]:
        return [span for scope in self._scopes("/v1/traces", "spans") for span in scope.spans]

    def logs(self) -> list[Any]:
        scopes = self._scopes("/v1/logs", "logs")
        return [record for scope in scopes for record in scope.log_records]

    def metrics(self) -> dict[str, Any]:
        """The newest of each name."""
        scopes = self._scopes("/v1/metrics", "metrics")
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def resources(self) -> list[dict[str, str]]:
        return [
            attributes(each.resource)
            for sent in self.received["/v1/traces"]
            for each in sent.resource_spans
        ]

    def close(self) -> None:
        self.stalled.clear()
        self._server.shutdown()
        self._server.server_close()

    def _scopes(self, path: str, kind: str) -> Iterator[Any]:
        for sent in list(self.received[path]):
            for resource in getattr(sent, f"resource_{kind}"):
                yield from getattr(resource, f"scope_{kind}")


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    receiver = Receiver(port)
    try:
        yield receiver
    finally:
        receiver.close()


def attributes(holder: Any) -> dict[str, Any]:
    """Attributes of a span, event, record, point or resource."""
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value")
        for each in holder.attributes
    }


def _server(receiver: Receiver, port: int) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.requests += 1
            while receiver.stalled.is_set():
                threading.Event().wait(0.02)
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if receiver.status == 200:
                request = _REQUESTS[self.path]()
                request.ParseFromString(body)
                receiver.received[self.path].append(request)
                receiver.headers.append(dict(self.headers))
            try:
                self.send_response(receiver.status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()
            except OSError:
                pass  # the client has lost patience

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    return server
