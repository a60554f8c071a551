"""What a candidate's choices would have been worth, from a log of decisions."""

import random
from contextlib import closing

import pytest

from infrastructure.agent_contract import Transition
from infrastructure.agent_contract.transition import Box, Discrete, TransitionSpec
from infrastructure.decisions import DecisionLog
from infrastructure.world_model import WorldModel
from infrastructure.world_model_agent.off_policy import LoggedDecisions, check_off_policy

SPEC = TransitionSpec(
    observation={"load": Box()},
    action={"tool": Discrete(values=("x", "y", "z"))},
    targets={"ok": Discrete(values=("no", "yes"))},
    success=("ok", "yes"),
)
TOOLS = [{"tool": tool} for tool in "zyx"]
CHANCE = {"x": 0.8, "y": 0.4, "z": 0.3}
TEST_GROUPS = [f"g{number}" for number in range(900)]


def _fitted(best):
    source, rows = random.Random(best), []
    for number in range(300):
        tool = source.choice("xyz")
        ok = source.random() < (0.9 if tool == best else 0.1)
        rows.append(
            Transition(
                group=str(number),
                observation={"load": source.random()},
                action={"tool": tool},
                next_observation={"ok": "yes" if ok else "no"},
            )
        )
    model = WorldModel(SPEC, members=1, hidden=8)
    model.fit(rows, epochs=4, device="cpu", precision="fp32")
    return model.fitted_model


@pytest.fixture(scope="module")
def models():
    return {best: _fitted(best) for best in "xy"}


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Folders of logs: one that explores, and one that always takes the first action."""
    folders = {}
    for name, explore in (("explores", 1.0), ("never", 0.0)):
        folders[name] = tmp_path_factory.mktemp(name)
        _write(folders[name], explore, rewards=False)
    folders["rewards"] = tmp_path_factory.mktemp("rewards")
    _write(folders["rewards"], 1.0, rewards=True)
    return folders


def _write(folder, explore, *, rewards):
    source, records = random.Random(0), []
    with closing(DecisionLog(folder)) as log:
        for number in range(1000):  # the last hundred groups are not for tests
            chosen = source.randrange(3) if source.random() < explore else 0
            tool = TOOLS[chosen]["tool"]
            ok = source.random() < CHANCE[tool]
            decision = {
                "kind": "decision",
                "id": f"d{number}",
                "group": f"g{number}",
                "observation": {"load": source.random()},
                "actions": TOOLS,
                "chosen": chosen,
                "propensity": explore / 3 + (1 - explore) * (chosen == 0),
                "deadline": 1e12,
                "answer": {"version": "v1", "propensities": [1 / 3] * 3},
            }
            place = log.append([decision])[0]
            records.append(
                {
                    "kind": "outcome",
                    "id": f"d{number}",
                    "of": place,
                    "state": "recorded",
                    "deadline": 1e12,
                    "next_observation": {"ok": "yes" if ok else "no"},
                }
                | ({"reward": 10.0 * ok} if rewards else {})
            )
        log.append(records)


def test_the_estimate_is_what_the_choices_are_worth(logs, models):
    check = check_off_policy(
        LoggedDecisions(logs=[logs["explores"]]), TEST_GROUPS, models["x"], models["y"]
    )
    metrics = check.metrics
    assert metrics["off_policy.decisions"] == 900
    assert metrics["off_policy.value.low"] < 0.8 < metrics["off_policy.value.high"]
    assert metrics["off_policy.gain.low"] < 0.4 < metrics["off_policy.gain.high"]
    assert metrics["off_policy.gain.low"] > 0.2
    assert check.text.startswith("off-policy estimate on 900 decisions, in successes: +0.")
    assert "its gain over the model in use +0." in check.text


def test_reported_rewards_are_what_a_decision_is_worth(logs, models):
    check = check_off_policy(
        LoggedDecisions(logs=[logs["rewards"]]), TEST_GROUPS, models["x"], None
    )
    assert check.metrics["off_policy.value"] == pytest.approx(8.0, abs=0.6)
    assert check.metrics["off_policy.gain"] == pytest.approx(5.0, abs=1.0), "z comes first"
    assert "in reward" in check.text
    assert "the agent's own order" in check.text


@pytest.mark.parametrize(
    ("candidate", "in_use", "gate", "refused"),
    [
        ("x", "y", "better", False),
        ("y", "x", "not_worse", True),
        ("x", "x", "not_worse", False),
        ("x", "x", "better", True),
    ],
)
def test_the_gate_refuses_what_the_estimate_speaks_against(
    logs, models, candidate, in_use, gate, refused
):
    check = check_off_policy(
        LoggedDecisions(logs=[logs["explores"]], gate=gate),
        TEST_GROUPS,
        models[candidate],
        models[in_use],
    )
    assert bool(check.problem) == refused
    if refused:
        assert check.problem.startswith(f"the off-policy gate ({gate}) refuses")


def test_without_exploration_nothing_is_estimated(logs, models, tmp_path):
    for folder in (logs["never"], tmp_path):
        logged = LoggedDecisions(logs=[folder], gate="not_worse")
        check = check_off_policy(logged, TEST_GROUPS, models["x"], models["y"])
        assert (check.text, check.problem, check.metrics) == ("", "", {})
    logged = LoggedDecisions(logs=[logs["never"]], gate="better")
    check = check_off_policy(logged, TEST_GROUPS, models["x"], models["y"])
    assert "no decision in the test groups has a propensity below 1" in check.problem


def test_few_decisions_are_not_enough(logs, models):
    logged = LoggedDecisions(logs=[logs["explores"]], gate="better")
    check = check_off_policy(logged, TEST_GROUPS[:60], models["x"], models["y"])
    assert "off_policy.gain" not in check.metrics
    assert "not enough" in check.text
    assert "not enough" in check.problem
