"""Errors of the store and of listeners are logged once and do not end the loop."""

import pytest
from sqlalchemy import create_engine, text
from structlog.testing import capture_logs

from genesis_fp16.daemon.run_loop import Listeners, StoreHealth
from infrastructure.events.event import Notice


def test_a_failing_store_is_logged_once_and_so_is_its_recovery() -> None:
    engine, health = create_engine("sqlite://"), StoreHealth()
    with capture_logs() as lines:
        for query in ("SELECT * FROM missing", "SELECT * FROM missing", "SELECT 1"):
            with health.catch_errors(), engine.connect() as connection:
                connection.execute(text(query))
            assert bool(health.problem) == ("missing" in query)
    assert [line["event"] for line in lines] == ["store_failed", "store_recovered"]
    assert lines[0]["error"] == "no such table: missing"
    engine.dispose()


def test_other_errors_pass() -> None:
    with pytest.raises(KeyError), StoreHealth().catch_errors():
        raise KeyError


class Recorder:
    def __init__(self) -> None:
        self.received: list[object] = []

    def on_event(self, agent: str, run_id: str, event) -> None:
        self.received.append((agent, run_id, event))

    def on_run_state(self, agent: str, run_id: str, state: str) -> None:
        self.received.append((agent, run_id, state))


class Broken:
    def on_event(self, agent: str, run_id: str, event) -> None:
        raise RuntimeError("broken")

    def on_run_state(self, agent: str, run_id: str, state: str) -> None:
        raise KeyError(state)


def test_the_others_are_called_and_each_error_is_logged_once() -> None:
    recorder, notice = Recorder(), Notice(event="greeting")
    listeners = Listeners([Broken(), recorder])
    with capture_logs() as logs:
        for _ in range(3):
            listeners.on_event("a", "r", notice)
        listeners.on_run_state("a", "r", "failed")
    assert recorder.received == [("a", "r", notice)] * 3 + [("a", "r", "failed")]
    assert [log["failure"] for log in logs] == [
        "Broken: RuntimeError('broken')",
        "Broken: KeyError('failed')",
    ]
