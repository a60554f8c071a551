"""A real HTTP server that answers as an OpenAI-compatible endpoint, or worse."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[["Handler", dict[str, Any]], None]


@dataclass
class Server:
    """Attributes:
    url: Base URL.
    replies: What is done with each request in turn; the last one is repeated.
    requests: Bodies that arrived.
    headers: Headers that arrived.
    cancelled: Number of streams whose client closed the connection.
    """

    url: str = ""
    replies: list[Reply] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    cancelled: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    script: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        number = len(self.script.requests)
        self.script.requests.append(body)
        self.script.headers.append({name.lower(): self.headers[name] for name in self.headers})
        replies = self.script.replies
        try:
            replies[min(number, len(replies) - 1)](self, body)
        except (BrokenPipeError, ConnectionResetError):
            self.script.cancelled += 1

    def log_message(self, *_: object) -> None:
        pass

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def start_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()

    def send_event(self, event: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.flush()


def chunk(text: str | None, index: int = 0, *, finish: str | None = None, **more: Any) -> Any:
    choice = {"index": index, "delta": {"content": text}, "finish_reason": finish}
    return {
        "id": "1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "tiny",
        "choices": [choice],
        **more,
    }


def answering(*texts: str, finish: str | None = "stop", **more: Any) -> Reply:
    """Stream *texts*, each in parts, with the tokens that they use."""

    def reply(handler: Handler, body: dict[str, Any]) -> None:
        handler.start_stream()
        for index, text in enumerate(texts[: body.get("n", 1)]):
            for start in range(0, len(text), 40):
                handler.send_event(chunk(text[start : start + 40], index, **more))
            handler.send_event(chunk(None, index, finish=finish, **more))
        usage = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
        handler.send_event({**chunk("", **more), "choices": [], "usage": usage})
        handler.wfile.write(b"data: [DONE]\n\n")

    return reply


def failing(status: int, message: str, **headers: str) -> Reply:
    body = json.dumps({"error": {"message": message}}).encode()
    return lambda handler, _: handler.send(
        status, body, **{"Content_Type": "application/json", **headers}
    )


def raw(body: bytes, **headers: str) -> Reply:
    return lambda handler, _: handler.send(200, body, **headers)


def dribbling(part: bytes, pause_seconds: float) -> Reply:
    """Send *part* again and again, without an end."""

    def reply(handler: Handler, body: dict[str, Any]) -> None:
        del body
        handler.start_stream()
        while not handler.script.stopping.wait(pause_seconds):
            handler.wfile.write(part)
            handler.wfile.flush()

    return reply


def silent(handler: Handler, body: dict[str, Any]) -> None:
    """Accept the request and never answer."""
    del body
    handler.script.stopping.wait(60)
    time.sleep(0)


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    """Serve until the block is left."""
    script = Server()
    handler = type("ScriptedHandler", (Handler,), {"script": script})
    server: socketserver.BaseServer = _HTTPServer(("127.0.0.1", 0), handler)
    script.url = f"http://127.0.0.1:{server.server_address[1]}/v1"  # type: ignore[index]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield script
    finally:
        script.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()
