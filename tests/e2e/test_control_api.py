"""The control API of a real daemon that trains: steered by it, and attacked through it."""

import http.client
import json
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from benchmarks.measuring.ports import free_port
from tests.patience import crowding

pytestmark = pytest.mark.e2e

TOKEN = "a-token-for-tests-0123456789"
DEADLINE_SECONDS = 2.0
LONGEST_ROUND_SECONDS = 1.0  # between two ticks of the loop, which takes 0.2 s
SLOW, LOUD = 150, 3  # clients that say little, and that say much


class Unix(http.client.HTTPConnection):
    """A connection to the Unix socket in a home."""

    def __init__(self, home: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = home / "control.sock"

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(str(self._path))


def ask(home: Path, method: str, path: str, change: object = None) -> Any:
    """What the API answers by its Unix socket."""
    with closing(Unix(home)) as connection:
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, None if change is None else json.dumps(change), headers)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status < 300, body
        return json.loads(body)


@pytest.fixture
def steered(shared_daemon, train_without_end: Callable[..., Any]) -> Any:
    """A daemon that trains in FP16, with the API on TCP."""
    if shared_daemon.process is None:
        shared_daemon.configure(GENESIS_API_PORT=free_port(), GENESIS_API_TOKEN=TOKEN)
    return train_without_end(shared_daemon)


def _effective(daemon) -> tuple[str, str]:
    [labels] = daemon.metrics().labels("genesis_precision_info", agent="quick")
    return labels["effective"], labels["reason"]


def test_a_live_rollback_seen_and_made_by_the_api(steered, record_property) -> None:
    home = steered.home
    [run] = ask(home, "GET", "/api/runs?state=running")
    change = {"precision": "fp32", "agent": "quick", "reason": "loss looks odd"}
    assert ask(home, "POST", "/api/precision/set", change)["actor"].startswith("api:")
    seconds = steered.wait_for(lambda: _effective(steered) == ("fp32", "operator"), "to be in FP32")
    record_property("measured", f"{seconds:.2f} s after the request: fp32 operator")
    assert seconds < DEADLINE_SECONDS * crowding()
    steered.wait_for(
        lambda: (
            ask(home, "GET", "/api/agents/quick")["precision"]["acknowledged"]["reason"]
            == "operator"
        ),
        "to record the acknowledgement",
    )

    def curve_shows(precision: str) -> bool:
        points = ask(home, "GET", f"/api/runs/{run['id']}/curve")["points"]
        return any(point["precision"] == precision for point in points)

    assert curve_shows("fp16")
    steered.wait_for(lambda: curve_shows("fp32"), "to report steps in FP32")
    curve = ask(home, "GET", f"/api/runs/{run['id']}/curve")
    assert any(point["overflows"] for point in curve["points"])
    with closing(Unix(home)) as connection:  # its statistics go on live
        connection.request("GET", f"/api/runs/{run['id']}/events?after={curve['last_event_id']}")
        answer = connection.getresponse()
        assert any(line == b"event: step_stats\n" for line in answer)
    assert ask(home, "POST", "/api/precision/clear", {"agent": "quick", "reason": "data"})
    steered.wait_for(lambda: _effective(steered) == ("fp16", "default"), "to be in FP16")


def _say_much(address: tuple[str, int], ended: threading.Event, seed: int) -> None:
    """Wrong tokens in a row, a body without end, and what is no HTTP."""
    chance = random.Random(seed)
    wrong = b"GET /api/agents HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n\r\n"
    huge = (
        b"POST /api/precision/set HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n"
        b"Content-Type: application/json\r\n\r\n" + b"[" * (1 << 20)
    )
    while not ended.is_set():
        with suppress(OSError), socket.create_connection(address, 5) as client:
            client.sendall(chance.choice([wrong * 20, huge, chance.randbytes(5000)]))
            client.recv(1 << 16)


def _say_little(address: tuple[str, int], ended: threading.Event) -> None:
    """Many connections, each with a letter now and then."""
    clients: list[socket.socket] = []
    while not ended.wait(0.1):
        with suppress(OSError):
            if len(clients) < SLOW:
                clients += [socket.create_connection(address, 5) for _ in range(10)]
        for client in list(clients):
            try:
                client.send(b"G")
            except OSError:  # closed by the API, as it should
                clients.remove(client)
                client.close()
    for client in clients:
        client.close()


@pytest.fixture
def attack(steered) -> Iterator[None]:
    """Slow, huge, wrong and many: all at once, from as many clients as two cores allow."""
    address = ("127.0.0.1", int(steered.settings["GENESIS_API_PORT"]))
    ended = threading.Event()
    threads = [
        threading.Thread(target=_say_much, args=[address, ended, seed]) for seed in range(LOUD)
    ]
    threads.append(threading.Thread(target=_say_little, args=[address, ended]))
    for thread in threads:
        thread.start()
    yield
    ended.set()
    for thread in threads:
        thread.join(timeout=60)


def test_hostile_clients_delay_neither_loop_nor_flag_nor_operator(
    steered, attack, record_property
) -> None:
    home = steered.home
    daemon = psutil.Process(steered.process.pid)
    steered.wait_for(lambda: "api_sign_in_failed" in steered.log, "to be attacked")
    steered.configure(ENABLE_FP16_TRAINING="false")
    seconds = steered.wait_for(lambda: _effective(steered) == ("fp32", "flag"), "to be in FP32")
    assert seconds < DEADLINE_SECONDS * crowding()
    waits = []
    for _ in range(5):
        before = steered.metrics().value("genesis_loop_last_tick_timestamp_seconds")
        waits.append(
            steered.wait_for(
                lambda before=before: (
                    steered.metrics().value("genesis_loop_last_tick_timestamp_seconds") > before
                ),
                "to tick",
            )
        )
        assert ask(home, "GET", "/api/health")["ready"], "the operator's socket answers"
    assert median(waits) < LONGEST_ROUND_SECONDS * crowding()
    [api] = [
        process
        for process in daemon.children()
        if "genesis_fp16.api" in " ".join(process.cmdline())
    ]
    assert api.nice() > daemon.nice()
    record_property(
        "measured",
        f"under attack: flag {seconds:.2f} s, rounds at most {max(waits):.2f} s apart; "
        f"API {api.memory_info().rss / 2**20:.0f} MiB",
    )
    assert TOKEN not in steered.log
    steered.configure(ENABLE_FP16_TRAINING="true")
    steered.wait_for(lambda: _effective(steered) == ("fp16", "default"), "to be in FP16")
