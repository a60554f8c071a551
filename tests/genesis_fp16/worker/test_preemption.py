"""Notices of clouds, from servers that answer as their metadata services do."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pydantic import ValidationError

from genesis_fp16.settings import Settings
from genesis_fp16.worker import preemption
from tests.patience import wait_until


@contextmanager
def metadata(answer: Callable[[BaseHTTPRequestHandler], tuple[int, str]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answer(self)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_PUT = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Cloud:
    """Answers as the service of *name*; *ends* after the notice."""

    def __init__(self, name: str) -> None:
        self.name, self.ends, self.asked = name, False, 0

    def __call__(self, request: BaseHTTPRequestHandler) -> tuple[int, str]:
        self.asked += 1
        headers = request.headers
        if self.name == "aws":
            if request.command == "PUT":
                assert headers["X-aws-ec2-metadata-token-ttl-seconds"]
                return 200, "the-token"
            if headers.get("X-aws-ec2-metadata-token") != "the-token":
                return 401, ""
            action = '{"action": "terminate", "time": "2026-11-26T08:22:00Z"}'
            return (200, action) if self.ends else (404, "")
        if self.name == "google":
            assert headers["Metadata-Flavor"] == "Google"
            return 200, "TRUE" if self.ends else "FALSE"
        assert headers["Metadata"] == "true"
        kind = "Preempt" if self.ends else "Reboot"
        return 200, f'{{"DocumentIncarnation": 1, "Events": [{{"EventType": "{kind}"}}]}}'


@pytest.mark.parametrize("name", ["aws", "google", "azure"])
def test_a_cloud_announces_the_end_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "LOOK_SECONDS", 0.01)
    cloud, notices = Cloud(name), list[str]()
    with metadata(cloud) as url:
        preemption.watch(None, f"{url}/where", notices.append)
        wait_until(lambda: cloud.asked >= 5, "the service to be asked")
        assert notices == []
        cloud.ends = True
        wait_until(lambda: notices, "the notice")
    assert len(notices) == 1
    assert notices[0].startswith("preempted: http://127.0.0.1")


def test_a_service_that_does_not_answer_announces_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preemption, "LOOK_SECONDS", 0.01)
    with metadata(lambda _: (500, "")) as url:
        pass
    notices: list[str] = []
    before = threading.active_count()
    preemption.watch(None, url, notices.append)
    assert threading.active_count() == before + 2
    assert preemption.announces_end("") is False
    assert notices == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("TRUE", True),
        ("FALSE", False),
        ('{"action": "stop", "time": "2026-11-26T08:22:00Z"}', True),
        ("<html>log in</html>", None),
        ('{"error": "no such path"}', None),
        ("[1]", None),
    ],
)
def test_only_what_clouds_answer_announces_the_end(text: str, found: bool | None) -> None:
    assert preemption.announces_end(text) is found


def test_a_service_that_breaks_the_protocol_does_not_hold_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(preemption, "LOOK_SECONDS", 0.01)
    asked, notices = list[int](), list[str]()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            for _ in range(3):
                with server.accept()[0] as connection:
                    connection.recv(1 << 16)
                    connection.sendall(b"no status line\r\n\r\n")
                    asked.append(1)

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        preemption.watch(tmp_path / "spot", url, notices.append)
        wait_until(lambda: len(asked) == 3, "the service to be asked again")
        (tmp_path / "spot").touch()
        wait_until(lambda: notices, "the notice")
    assert notices == [f"preempted: {tmp_path / 'spot'} exists"]


@pytest.mark.parametrize("url", ["http://u:p@h/x", "http://h:port/x", "ftp://h", "http://"])
def test_settings_refuse_a_url_that_cannot_be_asked(url: str) -> None:
    with pytest.raises(ValidationError, match=r"it is not a URL|it must name no user"):
        Settings(preemption_url=url)
