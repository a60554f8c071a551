"""Answers of the predictor over a real socket."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infrastructure.decisions import read_records
from infrastructure.world_model import EnsembleNetwork, NetworkShape, WorldModel
from tests.genesis_fp16.predictor.conftest import (
    BEST,
    QUESTION,
    SPEC,
    TOOLS,
    Client,
    Predictor,
    publish,
)

pytestmark = pytest.mark.process
NAN = float("nan")


def test_rank_answers_as_the_model_does(client: Client, models: dict[str, Path]) -> None:
    status, answer = client.agent("rank", QUESTION)
    model = WorldModel.load(models["a"])
    observation, actions = QUESTION["observation"], QUESTION["actions"]
    assert status == 200
    assert answer["agent"] == "qa"
    assert answer["version"] == "run-a"
    assert answer["order"] == model.rank(observation, actions)
    assert TOOLS[answer["order"][0]]["tool"] == BEST["a"]
    assert answer["chances"] == pytest.approx(model.success_chances(observation, actions))
    made = model.predict_batch([observation] * 3, actions)
    assert answer["improvements"] == pytest.approx([p.expected_improvement for p in made])
    assert answer["confidence"] == pytest.approx([p.confidence for p in made])


def test_predict_answers_one_action_or_several(client: Client, models: dict[str, Path]) -> None:
    model = WorldModel.load(models["a"])
    one = {"observation": QUESTION["observation"], "action": TOOLS[0]}
    status, answer = client.agent("predict", one)
    (expected,) = model.predict_batch([one["observation"]], [TOOLS[0]])
    (prediction,) = answer["predictions"]
    assert status == 200
    assert prediction["next_state"] == dict(expected.next_state)
    assert prediction["success_probability"] == pytest.approx(expected.success_probability)
    assert prediction["intervals"]["reward"]["coverage"] == 0.9
    status, answer = client.agent("predict", QUESTION)
    assert len(answer["predictions"]) == 3
    status, problem = client.agent("predict", {**one, "actions": TOOLS})
    assert (status, problem["field"]) == (422, "actions")


def test_an_agent_without_a_model_gets_the_given_order(predictor: Predictor) -> None:
    (predictor.home / "agents" / "new").mkdir(exist_ok=True)
    client = predictor.client()
    status, answer = client.agent("rank", QUESTION, "new")
    assert status == 200
    assert answer["version"] is None
    assert answer["order"] == [0, 1, 2]
    assert answer["chances"] == answer["improvements"] == [None] * 3
    assert answer["confidence"] == [0.0] * 3
    assert "no model is published yet" in answer["warnings"][0]
    status, answer = client.agent("predict", QUESTION, "new")
    assert answer["predictions"][0]["confidence"] == 0.0
    status, answer = client.agent("decisions", QUESTION, "new")
    assert (status, answer["chosen"], answer["propensity"]) == (200, 0, 1.0)


def _observed(**fields: Any) -> dict[str, Any]:
    return {**QUESTION, "observation": {**QUESTION["observation"], **fields}}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (_observed(load="much"), "observation.load"),
        (_observed(load={"deep": 1}), "observation.load"),
        (_observed(load=float("inf")), "observation.load"),
        (_observed(load=1e308), "observation.load"),
        (_observed(load=[1.0, float("-inf")]), "observation.load"),
        (_observed(load=10**400), "observation.load"),
        ({**QUESTION, "actions": [{"tool": "x"}, {"tool": 1.5}]}, "actions.1.tool"),
        ({**QUESTION, "actions": []}, "actions"),
        ({**QUESTION, "actions": TOOLS * 3334}, "actions"),
        ({**QUESTION, "speed": 1}, "speed"),
        ({"actions": TOOLS}, "observation"),
        ([], "body"),
    ],
)
def test_a_wrong_request_is_answered_with_its_field(client: Client, body: Any, field: str) -> None:
    status, problem = client.agent("rank", body)
    assert (status, problem["status"], problem["field"]) == (422, 422, field)
    assert problem["title"] == "Unprocessable Entity" or problem["title"]
    assert client.agent("rank", QUESTION)[0] == 200, "that request only"


def test_other_refusals(client: Client) -> None:
    assert client.agent("rank", b"{")[0] == 422
    assert client.agent("rank", b'{"observation": {"a": \xff}}')[0] == 422
    status, problem = client.agent("rank", QUESTION, "nobody")
    assert (status, problem["field"]) == (404, "agent")
    assert client.ask("/api/agents/..%2Fqa/rank", QUESTION)[0] == 404
    assert client.ask("/api/agents/qa/rank")[0] == 405
    assert client.ask("/api/agents/qa/nothing", {})[0] == 404
    status, problem = client.agent("decisions/unknown/outcome", {"reward": 1.0})
    assert (status, problem["field"]) == (404, "decision")
    headers = {"Genesis-Protocol": "2"}
    status, problem = client.ask("/api/agents/qa/rank", QUESTION, headers)
    assert status == 400
    assert "version 2" in problem["detail"]
    assert "version 1" in problem["detail"]
    assert client.agent("decisions", {**QUESTION, "deferred": True})[1]["field"] == "deferred"
    assert client.agent("decisions", {**QUESTION, "id": "a/b"})[1]["field"] == "id"


def test_a_mebibyte_of_text_is_answered_and_a_larger_body_refused(predictor: Predictor) -> None:
    client = predictor.client()
    assert client.agent("rank", _observed(note="word " * (1 << 18)))[0] == 200
    status, problem = client.agent("rank", _observed(note="x" * (5 << 20)))
    assert status == 413
    assert "4194304" in problem["detail"]


def test_a_value_may_be_missing_in_three_ways(client: Client) -> None:
    absent = {**QUESTION, "observation": {"note": "disk full"}}
    answers = [
        client.agent("rank", body) for body in (absent, _observed(load=None), _observed(load=NAN))
    ]
    assert answers[0] == answers[1] == answers[2]
    status, answer = answers[0]
    assert status == 200
    assert any(warning.startswith("observation.load") for warning in answer["warnings"])
    one = {**QUESTION, "actions": [*TOOLS, {}]}
    warnings = client.agent("rank", one)[1]["warnings"]
    assert any(warning.startswith("actions 3: action.tool") for warning in warnings)
    nothing = {"observation": {}, "actions": [{}]}
    assert client.agent("rank", nothing)[0] == 200
    assert client.agent("predict", nothing)[0] == 200


def test_a_damaged_model_costs_its_agent_alone(
    predictor: Predictor, models: dict[str, Path]
) -> None:
    folder = predictor.home / "agents" / "broken"
    publish(folder, models["b"], "run-b")
    index = folder / "published" / "model.json"
    good = index.read_bytes()
    index.write_bytes(good[:100])
    client = predictor.client()
    status, answer = client.agent("rank", QUESTION, "broken")
    assert (status, answer["version"]) == (200, None)
    assert "truncated or altered" in answer["warnings"][0]
    assert client.agent("rank", QUESTION)[1]["version"] == "run-a"
    index.write_bytes(good)
    assert client.agent("rank", QUESTION, "broken")[1]["version"] == "run-b"


def test_models_and_the_document_are_listed(client: Client) -> None:
    client.agent("rank", QUESTION)
    listed = client.ask("/api/models")[1]["models"]
    qa = {"agent": "qa", "version": "run-a", "loaded": True, "own_process": False}
    assert qa in listed
    document = client.ask("/openapi.json")[1]
    assert document["openapi"] == "3.1.0"
    assert "/api/agents/{name}/decisions/{id}/outcome" in document["paths"]
    assert client.ask("/healthz") == (200, b"ok\n")


def test_a_decision_is_remembered_with_its_outcome(client: Client, home: Path) -> None:
    status, answer = client.agent("decisions", {**QUESTION, "id": "d1", "group": "task-7"})
    assert status == 200
    assert answer["chosen"] == answer["order"][0]
    assert sum(answer["propensities"]) == pytest.approx(1.0)
    repeated = client.agent("decisions", {**QUESTION, "id": "d1", "group": "task-7"})[1]
    assert repeated == answer
    assert client.agent("decisions", {**QUESTION, "id": "d1"})[0] == 409
    partial = {"next_observation": {"ok": "yes"}, "final": False}
    answer = {"id": "d1", "state": "partial", "warnings": []}
    assert client.agent("decisions/d1/outcome", partial) == (200, answer)
    final = {"reward": 0.5}
    assert client.agent("decisions/d1/outcome", final)[1]["state"] == "recorded"
    assert client.agent("decisions/d1/outcome", final)[1]["state"] == "repeated"
    assert client.agent("decisions/d1/outcome", {"reward": 0.6})[0] == 409
    wrong = {"next_observation": {"ok": None}}
    status, problem = client.agent("decisions/d1/outcome", wrong)
    assert (status, problem["field"]) == (422, "next_observation.ok")
    records = [found for _, _, found in read_records(home / "agents" / "qa" / "decisions")]
    decision, _, outcome = [found for found in records if found["id"] == "d1"]
    assert decision["group"] == "task-7"
    assert decision["answer"]["version"] == "run-a"
    assert outcome["next_observation"] == {"ok": "yes"}
    assert outcome["reward"] == 0.5


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"reward": NAN}, "reward"),
        ({"reward": "much"}, "reward"),
        ({"reward": float("inf")}, "reward"),
        ({"next_observation": {"ok": NAN}}, "next_observation.ok"),
        ({"next_observation": {"ok": ["yes"]}}, "next_observation.ok"),
        ({"reward": 1e200}, "reward"),
        ({"next_observation": ["yes"]}, "next_observation"),
        ({"terminated": 1}, "terminated"),
        ({"error": "x" * 9000}, "error"),
        ({"prize": 1.0}, "prize"),
    ],
)
def test_a_wrong_outcome_is_refused_and_a_right_one_counts_after_it(
    client: Client, fields: dict[str, Any], field: str
) -> None:
    name = client.agent("decisions", QUESTION)[1]["id"]
    status, problem = client.agent(f"decisions/{name}/outcome", fields)
    assert (status, problem["field"]) == (422, field)
    assert client.agent(f"decisions/{name}/outcome", {"reward": 1.0})[1]["state"] == "recorded"


def test_a_clients_own_choice_replaces_a_decision_without_an_outcome(client: Client) -> None:
    answer = client.agent("decisions", {**QUESTION, "id": "c1"})[1]
    own = {"id": "c1", **QUESTION, "chosen": (answer["chosen"] + 1) % 3, "at": 5.0}
    counts = {"recorded": 1, "repeated": 0}
    assert client.agent("choices", {"choices": [own, own]}) == (200, {**counts, "repeated": 1})
    assert client.agent("choices", {"choices": [own]})[1] == {"recorded": 0, "repeated": 1}
    assert client.agent("decisions/c1/outcome", {"reward": 1})[1]["state"] == "recorded"
    assert client.agent("choices", {"choices": [{**own, "chosen": 0}]})[0] in (200, 409)
    other = {**own, "chosen": 3}
    status, problem = client.agent("choices", {"choices": [own, other]})
    assert (status, problem["field"]) == (422, "choices.1.chosen")
    milliseconds = {**own, "id": "c2", "at": 1.8e12}
    status, problem = client.agent("choices", {"choices": [milliseconds]})
    assert (status, problem["field"]) == (422, "choices.0.at")


class _OwnNetwork(EnsembleNetwork):
    """The library's, as a class of its own."""


def test_outcomes_of_an_agent_with_its_own_network_are_checked_too(
    predictor: Predictor, models: dict[str, Path]
) -> None:
    model = WorldModel.load(models["a"])
    fitted = model.fitted_model
    assert fitted is not None
    network = _OwnNetwork(NetworkShape.of(fitted.encoder, fitted.codec), members=1, hidden=8)
    own = WorldModel.from_fitted(replace(fitted, ensemble=network), model.metrics)
    own.save(predictor.home / "agents" / "own" / "published")
    sent = {"id": "t", "group": "g", **QUESTION, "next_observation": {"ok": {"is": "no"}}}
    sent["action"] = sent.pop("actions")[0]
    client = predictor.client()
    status, problem = client.agent("transitions", {"transitions": [sent]}, "own")
    assert (status, problem["field"]) == (422, "transitions.0.next_observation.ok")
    sent["next_observation"] = {"ok": "no"}
    assert client.agent("transitions", {"transitions": [sent]}, "own")[1]["recorded"] == 1


def test_transitions_are_recorded_all_or_none(client: Client) -> None:
    sent = {
        "group": "g",
        "observation": QUESTION["observation"],
        "action": TOOLS[0],
        "next_observation": {"ok": "yes"},
    }
    body = {"transitions": [{"id": "t1", **sent}, {"id": "t2", **sent}]}
    answer = {"recorded": 2, "repeated": 0, "warnings": []}
    assert client.agent("transitions", body) == (200, answer)
    body["transitions"].append({"id": "t3", **sent, "next_observation": {"oks": "no", "x": 1}})
    status, answer = client.agent("transitions", body)
    assert (status, answer["recorded"], answer["repeated"]) == (200, 1, 2)
    assert answer["warnings"] == [
        "transitions.2.next_observation.oks is not a target of the model: did you mean ok?"
    ]
    undeclared = {"id": "t3b", **sent, "next_observation": {"ok": "maybe"}}
    status, answer = client.agent("transitions", {"transitions": [undeclared]})
    assert (status, answer["recorded"]) == (200, 1)
    assert answer["warnings"] == [
        "transitions.0.next_observation.ok must be a declared label, got 'maybe'; it counts for a "
        "model that declares it"
    ]
    bad = {"transitions": [{"id": "t4", **sent}, {"id": "t5", **sent, "reward": "much"}]}
    status, problem = client.agent("transitions", bad)
    assert (status, problem["field"]) == (422, "transitions.1.reward")
    assert client.agent("transitions", {"transitions": [{"id": "t4", **sent}]})[1]["recorded"] == 1
    changed = {"transitions": [{"id": "t6", **sent}, {"id": "t1", **sent, "reward": 1.0}]}
    assert client.agent("transitions", changed)[0] == 409
    assert SPEC.targets.keys() == {"ok", "reward"}
