"""A listener that fails costs nobody anything, and fills no log."""

from structlog.testing import capture_logs

from genesis_fp16.daemon.listeners import Listeners
from infrastructure.events.event import Notice


class Recorder:
    def __init__(self) -> None:
        self.told: list[object] = []

    def on_event(self, agent: str, run_id: str, event) -> None:
        self.told.append((agent, run_id, event))

    def on_run_state(self, agent: str, run_id: str, state: str) -> None:
        self.told.append((agent, run_id, state))


class Broken:
    def on_event(self, agent: str, run_id: str, event) -> None:
        raise RuntimeError("broken")

    def on_run_state(self, agent: str, run_id: str, state: str) -> None:
        raise KeyError(state)


def test_the_others_are_told_and_the_log_says_it_once() -> None:
    recorder, notice = Recorder(), Notice(event="hello")
    listeners = Listeners([Broken(), recorder])
    with capture_logs() as logs:
        for _ in range(3):
            listeners.on_event("a", "r", notice)
        listeners.on_run_state("a", "r", "failed")
    assert recorder.told == [("a", "r", notice)] * 3 + [("a", "r", "failed")]
    assert [log["failure"] for log in logs] == [
        "Broken: RuntimeError('broken')",
        "Broken: KeyError('failed')",
    ]
