"""Predictors that hang; an agent that overrides `build_model` hangs, crashes and leaks alone."""

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from genesis_fp16.daemon import restart_delay, service_process
from genesis_fp16.daemon.prediction import SOCKET_NAME, PredictionService
from genesis_fp16.domain.predictor import AgentFigures, JudgedOutcomes, KnownAgent
from genesis_fp16.settings import Settings
from infrastructure.agent_contract import Transition
from infrastructure.world_model import NetworkShape, WorldModel
from tests.genesis_fp16.daemon.own_network_agent import SPEC, OwnAgent
from tests.genesis_fp16.predictor.conftest import Client
from tests.preloaded import ForkedPopen

pytestmark = pytest.mark.process
QUESTION = {"observation": {"load": 1.0}, "actions": [{"tool": "x"}, {"tool": "y"}]}


class Desk:
    """A service with an own agent and a calm one, looked after by a thread as by a daemon."""

    def __init__(self, settings: Settings, deed: Path) -> None:
        self.deed = deed
        agents = {
            "own": KnownAgent(entry_point="own_network_agent:OwnAgent", version="1"),
            "calm": KnownAgent(),
        }
        self._path = settings.home / SOCKET_NAME
        self.figures: list[tuple[str, AgentFigures]] = []
        self.service = PredictionService(
            settings, lambda: agents, lambda *figures: self.figures.append(figures)
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_after)
        self._thread.start()

    def rank(self, agent: str) -> Any:
        with closing(Client(self._path)) as client:
            status, answer = client.agent("rank", QUESTION, agent)
        assert status == 200, answer
        return answer

    def act(self, agent: str, count: int) -> None:
        """Decide, and report that what it chose came true."""
        with closing(Client(self._path)) as client:
            for number in range(count):
                status, made = client.agent("decisions", QUESTION, agent)
                assert status == 200, made
                happened = {"next_observation": {"ok": "yes"}, "reward": 1.0, "id": str(number)}
                status, answer = client.agent(f"decisions/{made['id']}/outcome", happened, agent)
                assert (status, answer["state"]) == (200, "recorded")

    def refusal(self, agent: str, observation: dict[str, Any]) -> str:
        """Field at fault of a refused question."""
        with closing(Client(self._path)) as client:
            question = {**QUESTION, "observation": observation}
            status, problem = client.agent("rank", question, agent)
        assert status == 422
        return str(problem["field"])

    def judged(self, agent: str) -> list[JudgedOutcomes]:
        """What was reported of its outcomes."""
        of_agent = [figures for name, figures in self.figures if name == agent]
        return [figures.judged for figures in of_agent if figures.judged is not None]

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self.service.close()

    def _look_after(self) -> None:
        while not self._ended.wait(0.02):
            self.service.tick()


def publish(agents: Path) -> None:
    """Publish one model for both: with the own network, and as one of the library."""
    source, rows = random.Random(1), []
    for number in range(200):
        tool, load = source.choice("xy"), source.random()
        ok = tool == "y"
        rows.append(
            Transition(
                group=str(number),
                observation={"load": load},
                action={"tool": tool},
                reward=float(ok) + load / 9,
                next_observation={"ok": "yes" if ok == (source.random() < 0.9) else "no"},
            )
        )
    model = WorldModel(SPEC, members=1, hidden=8)
    model.fit(rows, epochs=2, device="cpu", precision="fp32")
    model.save(agents / "calm" / "published")
    fitted = model.fitted_model
    assert fitted is not None
    network = OwnAgent().build_model(NetworkShape.of(fitted.encoder, fitted.codec))
    network.load_state_dict(fitted.ensemble.state_dict())
    held_out = {"nll_standard_error": 0.01, "nll_deviation": 0.3}
    own = WorldModel.from_fitted(replace(fitted, ensemble=network), {**model.metrics, **held_out})
    own.save(agents / "own" / "published")


@pytest.fixture
def desk(
    home_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    monkeypatch.setattr(subprocess, "Popen", ForkedPopen)
    monkeypatch.setattr(service_process, "HANG_SECONDS", 3.0)
    monkeypatch.setattr(restart_delay, "LONGEST_RESTART_SECONDS", 1.0)
    plugins, deed = tmp_path / "plugins", tmp_path / "deed"
    plugins.mkdir()
    shutil.copy(Path(__file__).with_name("own_network_agent.py"), plugins)
    monkeypatch.setenv("PYTHONPATH", str(plugins))
    monkeypatch.setenv("OWN_NETWORK_DEED", str(deed))
    publish(home_settings.home / "agents")
    settings = home_settings.model_copy(update={"predict_own_mib": 700})
    with closing(Desk(settings, deed)) as desk:
        yield desk


def test_an_agent_with_its_own_network_harms_only_itself_and_what_hangs_is_replaced(
    desk: Desk, until: Callable[..., None]
) -> None:
    with capture_logs() as logs:

        def events() -> list[str]:
            return [line["event"] for line in logs if line.get("agent") == "own"]

        def answers() -> bool:
            return desk.rank("own")["version"] is not None

        until(answers)
        assert desk.rank("own")["order"] == [1, 0]
        assert desk.refusal("own", {"load": "much"}) == "observation.load"
        desk.act("own", 3)
        until(lambda: sum(each.count for each in desk.judged("own")) == 3)
        assert all(each.loss_sum > 0 for each in desk.judged("own"))
        first = desk.service.own_pid("own")
        assert first not in (None, desk.service.pid)

        desk.deed.write_text("hang")
        began, answer = time.monotonic(), desk.rank("own")
        assert (answer["order"], answer["confidence"]) == ([0, 1], [0.0, 0.0])
        assert "gave no answer in" in answer["warnings"][0]
        assert time.monotonic() - began < 30
        assert desk.rank("calm")["order"] == [1, 0], "others are answered"
        until(lambda: "predictor_hung" in events())
        desk.deed.unlink()
        until(answers)
        assert desk.service.own_pid("own") != first

        for deed, event in (("crash", "predictor_ended"), ("leak", "predictor_too_large")):
            logs.clear()
            desk.deed.write_text(deed)
            until(lambda: desk.rank("own") and event in events())  # noqa: B023
            assert desk.rank("calm")["version"] is not None
            desk.deed.unlink()
            until(answers)

        logs.clear()
        desk.deed.write_text("exit")
        own = desk.service.own_pid("own")
        assert own is not None
        os.kill(own, signal.SIGKILL)
        until(lambda: answers() or "agent_not_loaded" in events())
        refusal = next(line for line in logs if line["event"] == "agent_not_loaded")
        assert "sys.exit(3)" in refusal["reason"]
        assert desk.rank("calm")["version"] is not None
        desk.deed.unlink()
        until(answers)
        assert "predictor_report_unreadable" not in events(), "what it prints is no report"

        shared = desk.service.pid
        assert shared is not None
        logs.clear()
        os.kill(shared, signal.SIGSTOP)
        until(lambda: "predictor_ended" in [line["event"] for line in logs])
        assert (logs[0]["event"], logs[0]["pid"]) == ("predictor_hung", shared)
        assert desk.rank("calm")["version"] is not None, "it was replaced"
