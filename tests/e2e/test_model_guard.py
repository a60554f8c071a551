"""A real daemon with a real predictor takes a model back whose predictions stop coming true."""

import json
import random
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from genesis_fp16.plugins.model_versions import ModelVersion, describe_published, keep_version
from infrastructure.agent_contract import Transition
from infrastructure.agent_contract.transition import Box, Discrete, TransitionSpec
from infrastructure.world_model import EnsembleNetwork, WorldModel
from infrastructure.world_model.fitting import prepare_training_data
from infrastructure.world_model_agent.publication import gate_publication
from tests.e2e.test_predictor import Unix

pytestmark = pytest.mark.e2e

SPEC = TransitionSpec(
    observation={"load": Box()},
    action={"turn": Discrete(values=("left", "right"))},
    targets={"ok": Discrete(values=("no", "yes"))},
    success=("ok", "yes"),
)
ACTIONS = [{"turn": "left"}, {"turn": "right"}]


def outcome(best: str, turn: object, source: random.Random) -> str:
    return "yes" if source.random() < (0.9 if turn == best else 0.1) else "no"


def publish(agent: Path, best: str, version: str, replaced: str | None) -> None:
    """Publish a model by the gate, as a run does, of a world in which turning *best* succeeds."""
    source, rows = random.Random(best), []
    for number in range(400):
        turn = source.choice(["left", "right"])
        rows.append(
            Transition(
                group=str(number),
                observation={"load": source.random()},
                action={"turn": turn},
                next_observation={"ok": outcome(best, turn, source)},
            )
        )
    data = prepare_training_data(SPEC, rows)
    model = WorldModel(SPEC, members=1, hidden=8)
    model.fit(data, epochs=4, device="cpu", precision="fp32")
    assert model.fitted_model is not None
    decision = gate_publication(data, model.fitted_model.ensemble, agent / "none", EnsembleNetwork)
    assert decision.published, decision.reason
    WorldModel.from_fitted(decision.candidate, decision.metrics).save(agent / "published")
    facts = ModelVersion(
        id=version,
        run_id=None,
        published_at=time.time(),
        replaced=replaced,
        reason=decision.reason,
        metrics=decision.metrics,
        data=None,
        files=describe_published(agent),
    )
    keep_version(agent, facts, keep=5)


def test_a_model_that_stops_predicting_is_taken_back_and_a_training_asked_for(
    make_daemon: Callable[..., Any],
) -> None:
    daemon, source = make_daemon(), random.Random(0)
    daemon.configure(
        GENESIS_AGENTS__QUICK__EXPLORE='"epsilon 0.5"',
        GENESIS_AGENTS__QUICK__SCHEDULE='"every 1000000 outcomes"',  # else it is due at once
        GENESIS_AGENTS__QUICK__SETTINGS__EPOCHS=1_000_000,  # what is asked for does not publish
        GENESIS_AGENTS__QUICK__SETTINGS__PAUSE_SECONDS=0.02,
    )
    agent = daemon.home / "agents" / "quick"
    publish(agent, "right", "v1", None)
    publish(agent, "left", "v2", "v1")
    daemon.start()
    versions = set()
    with closing(Unix(daemon.home)) as connection:

        def ask(verb: str, body: object) -> tuple[int, Any]:
            connection.request("POST", f"/api/agents/quick/{verb}", json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

        def decide(best: str) -> str:
            body = {"observation": {"load": source.random()}, "actions": ACTIONS}
            status, decision = ask("decisions", body)
            assert status == 200, decision
            turn = ACTIONS[decision["chosen"]]["turn"]
            report = {"next_observation": {"ok": outcome(best, turn, source)}}
            assert ask(f"decisions/{decision['id']}/outcome", report)[0] == 200
            return str(decision["version"])

        rank = {"observation": {"load": 0.5}, "actions": ACTIONS}
        daemon.wait_for(lambda: ask("rank", rank)[0] == 200, "to know the agent")
        for _ in range(60):
            versions.add(decide("left"))
        assert versions == {"v2"}
        assert daemon.json("runs") == []

        def judged(of: str) -> float:
            return daemon.metrics().value("genesis_prediction_log_loss", agent="quick", of=of)

        daemon.wait_for(lambda: judged("live") == judged("live"), "to judge predictions")
        assert judged("held_out") < judged("base_rate")
        healthy = daemon.json("models", "list", "quick")["guard"]
        assert healthy["taken_back"] == []
        assert healthy["reading"]["evidence"] < 1

        def taken_back() -> bool:
            for _ in range(20):
                versions.add(decide("right"))
            return daemon.metrics().value("genesis_models_taken_back_total", agent="quick") == 1

        daemon.wait_for(taken_back, "to take the model back")
        daemon.wait_for(lambda: decide("right") == "v1", "to answer by the version before")
    listed = daemon.json("models", "list", "quick")
    assert listed["in_use"] == "v1"
    assert listed["guard"]["taken_back"] == ["v2"]
    assert "of its skill is lost" in listed["guard"]["explanation"]
    daemon.wait_for(lambda: "training_queued" in daemon.log, "to ask for a training")
    assert daemon.cli("models", "keep", "quick", "--reason", "I look after it").returncode == 0
    code, _ = daemon.stop()
    assert code == 0
    daemon.start()
    assert daemon.json("models", "list", "quick")["guard"]["kept"] == "v1"
