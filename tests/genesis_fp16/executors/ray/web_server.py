"""A web server that is not Ray."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def served(pages: dict[str, tuple[int, str]], asked: list[str] | None = None) -> Iterator[str]:
    """The address of a server that answers with *pages*, and 404 elsewhere; its clock is slow.

    What it is asked for is added to *asked*.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if asked is not None:
                asked.append(self.path)
            status, text = pages.get(self.path, (404, "404: Not Found"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET

        def date_time_string(self, timestamp: float | None = None) -> str:
            return "Thu, 01 Jan 1970 00:00:00 GMT"

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(timeout=60)
