"""The real process that serves the API, over real sockets, for a home without a daemon's loop."""

import http.client
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measuring.ports import free_port
from genesis_fp16.daemon.control import SOCKET_NAME, ControlApi
from genesis_fp16.domain.precision import Device
from genesis_fp16.settings import Settings
from genesis_fp16.store import DaemonLock, Store
from tests.genesis_fp16.new_store import new_store
from tests.preloaded import API, ForkedPopen

TOKEN = "a-token-for-tests-0123456789"
DEVICE = Device(accelerator=False, fp16=False, bf16=False, cpu_half=True, name="cpu")


class _ForkedApi(ForkedPopen):
    """Forks the API, whose imports take a second; where its memory is measured it is started."""

    modules = (*ForkedPopen.modules, API)


@dataclass
class Answer:
    """What the API has answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(str(self._path))


class Served:
    """The API of a home: its store, and requests to it by its Unix socket or by TCP."""

    def __init__(self, settings: Settings, store: Store, control: ControlApi, port: int) -> None:
        self.settings, self.store, self.control = settings, store, control
        self.home, self.port = settings.home.absolute(), port

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        tcp: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request; a *body* that is not text is sent as JSON."""
        sent = dict(headers or {})
        data = body if isinstance(body, str | None) else json.dumps(body)
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        connection = (
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            if tcp
            else _UnixConnection(self.home / SOCKET_NAME)
        )
        with closing(connection):
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())

    def get(self, path: str) -> Any:
        """What a path answers, as JSON."""
        answer = self.ask("GET", path)
        assert answer.status == 200, answer.body
        return answer.json()


@pytest.fixture(scope="module")
def serve_api(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., Served]]:
    """Serve a new home, locked as by a daemon; all processes are gone afterwards."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(subprocess, "Popen", _ForkedApi)

        def serve(**changes: object) -> Served:
            folder = tmp_path_factory.mktemp("api")
            port = free_port()
            values = {"home": folder / "home", "api_port": port, "api_token": TOKEN}
            settings = Settings(**(values | changes))
            settings.home.mkdir()
            lock = stack.enter_context(DaemonLock(settings))
            store = stack.enter_context(closing(new_store(settings)))
            lock.write_status(settings, scanned_at=1.0, device=DEVICE)
            control = stack.enter_context(closing(ControlApi(settings)))
            ended = threading.Event()

            def tick() -> None:
                while not ended.wait(0.02):
                    control.tick()

            loop = threading.Thread(target=tick)
            loop.start()
            stack.callback(loop.join)
            stack.callback(ended.set)
            return Served(settings, store, control, port)

        yield serve


@pytest.fixture(scope="module")
def api(serve_api: Callable[..., Served]) -> Served:
    """The API of a home that the tests of a module share."""
    for name in list(os.environ):
        assert not name.startswith("GENESIS_API"), f"{name} is set: these tests set it themselves"
    return serve_api()
