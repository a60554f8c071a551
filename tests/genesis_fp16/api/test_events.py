"""Server-sent events over real sockets: backlog, live, resumed, ended, bounded."""

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pytest

from genesis_fp16.api.streams.server_sent import MAX_STREAMS
from genesis_fp16.domain.attempt import Attempt, attempt_folder
from genesis_fp16.domain.run import RunState
from infrastructure.events import EventWriter
from infrastructure.events.event import StepStats
from tests.genesis_fp16.api.conftest import TOKEN

pytestmark = pytest.mark.process
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@dataclass
class Event:
    kind: str
    data: dict
    id: str


class Stream:
    """An open stream of events."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[Event]:
        fields: dict[str, str] = {}
        for line in self._answer:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif "event" in fields:
                yield Event(fields["event"], json.loads(fields["data"]), fields.get("id", ""))
                fields = {}
            else:
                fields = {}

    def take(self, count: int, kind: str) -> list[Event]:
        """The next *count* events of this kind."""
        events: list[Event] = []
        for event in self:
            if event.kind == kind:
                events.append(event)
                if len(events) == count:
                    return events
        raise AssertionError(f"the stream ended after {events}")


@pytest.fixture
def stream(api):
    """Open a stream by TCP."""

    @contextmanager
    def open_stream(path: str, **headers: str) -> Iterator[Stream]:
        with closing(http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)) as connection:
            connection.request("GET", path, headers=BEARER | headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield Stream(answer)

    return open_stream


def begin(api, incarnation: str, run_id: str | None = None) -> tuple[Attempt, EventWriter]:
    run_id = run_id or api.store.enqueue("se-darwin", first_seed=0).id
    attempt = api.store.begin_attempt(run_id, incarnation)
    assert attempt is not None
    folder = attempt_folder(api.home, attempt)
    folder.mkdir(parents=True)
    return attempt, EventWriter(folder / "events.ndjson")


def stats(step: int) -> StepStats:
    return StepStats(step=step, applied=1, loss=0.5, loss_scale=1.0, precision="fp32")


def test_a_run_from_its_backlog_to_its_end(api, stream) -> None:
    """Two attempts, a break in between, nothing twice and nothing left out."""
    attempt, write = begin(api, "one")
    path = f"/api/runs/{attempt.run_id}/events"
    with write:
        for step in (1, 2, 3):
            write(stats(step))
        with stream(path) as events:
            first = events.take(3, "step_stats")
            write(stats(4))
            live = events.take(1, "step_stats")
        assert [event.data["step"] for event in first + live] == [1, 2, 3, 4]
        write(stats(5))
    api.store.move(attempt.run_id, RunState.QUEUED)
    second, write = begin(api, "two", attempt.run_id)
    with write:
        write(stats(6))
    api.store.move(second.run_id, RunState.SUCCEEDED)
    with stream(path, **{"Last-Event-ID": live[0].id}) as events:
        rest = list(events)
    assert [event.data["step"] for event in rest if event.kind == "step_stats"] == [5, 6]
    assert (rest[-1].kind, rest[-1].data["state"]) == ("end", "succeeded")
    curve = api.get(f"/api/runs/{attempt.run_id}/curve")
    with stream(f"{path}?after={curve['last_event_id']}") as events:
        assert [event.kind for event in events] == ["state", "end"], "a curve ends where it goes on"


def test_changes_of_states_live_and_after_a_break(api, stream) -> None:
    with stream("/api/events") as events:
        [hello] = events.take(1, "hello")
        run = api.store.enqueue("policy", first_seed=0)
        [queued] = events.take(1, "run")
        assert (queued.data["id"], queued.data["state"]) == (run.id, "queued")
    api.store.move(run.id, RunState.CANCELLED)
    with stream("/api/events", **{"Last-Event-ID": queued.id}) as events:
        [ended] = events.take(1, "run")
        assert (ended.data["id"], ended.data["state"]) == (run.id, "cancelled")
    with stream(f"/api/events?after={hello.id}") as events:
        assert [event.data["state"] for event in events.take(2, "run")] == ["queued", "cancelled"]
    change = {"agent": "policy", "reason": "why", "precision": "fp32"}
    with stream("/api/events") as events:
        events.take(1, "hello")
        assert api.ask("POST", "/api/precision/set", change).status == 200
        [made] = events.take(1, "change")
        assert (made.data["action"], made.data["reason"]) == ("precision set", "why")
    with stream("/api/events?after=another-7") as events:
        events.take(1, "reset")


@pytest.mark.parametrize("place", ["x", "1:2:3", "-1:0", "9" * 10 + ":1"])
def test_a_place_that_is_none_is_refused(api, place: str) -> None:
    run = api.store.enqueue("policy", first_seed=0)
    assert api.ask("GET", f"/api/runs/{run.id}/events?after={place}").status == 400


def test_streams_are_bounded_and_end_with_their_client(
    api, stream, until: Callable[..., None]
) -> None:
    run = api.store.enqueue("policy", first_seed=0)
    path = f"/api/runs/{run.id}/events"
    opened = []
    request = (
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
    )

    def opens() -> bool:
        client = socket.create_connection(("127.0.0.1", api.port), 60)
        client.sendall(request)
        if client.recv(12) != b"HTTP/1.1 200":  # streams of tests before end after their clients
            client.close()
            return False
        opened.append(client)
        return True

    for number in range(MAX_STREAMS):
        until(opens, f"stream {number} to open")
    answer = api.ask("GET", path, tcp=True, headers=BEARER)
    assert answer.status == 503
    assert "close one" in answer.json()["detail"]
    for client in opened:
        client.close()

    def accepted() -> bool:
        with closing(http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)) as connection:
            connection.request("GET", path, headers=BEARER)
            return connection.getresponse().status == 200

    until(accepted)
