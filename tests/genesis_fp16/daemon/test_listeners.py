"""A listener that fails does not affect the others, and does not fill the log."""

from structlog.testing import capture_logs

from genesis_fp16.daemon.listeners import Listeners
from infrastructure.events.event import Notice


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
