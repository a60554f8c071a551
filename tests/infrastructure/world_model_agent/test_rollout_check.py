import math
import random
import re
from dataclasses import replace

import pytest
import torch

from infrastructure.agent_contract.transition import Box, Transition, TransitionSpec
from infrastructure.world_model import EnsembleNetwork, NetworkShape, WorldModel
from infrastructure.world_model.fitting import fit_candidates, prepare_training_data
from infrastructure.world_model.networks import build_seeded
from infrastructure.world_model_agent.publication import gate_publication
from infrastructure.world_model_agent.rollout_check import check_rollouts

STATE = Box(shape=(2,))
SPEC = TransitionSpec(
    observation={"x": STATE}, action={"turn": Box()}, targets={"x": STATE}, rollout_steps=5
)


def _record(groups=60, steps=20):
    """A point that the action turns on a circle, by angles that no linear model adds."""
    generator, rows = random.Random(0), []
    for number in range(groups):
        angle = generator.uniform(-math.pi, math.pi)
        for _ in range(steps):
            turn = generator.uniform(-1, 1)
            before, angle = angle, angle + 0.4 + turn
            rows.append(
                Transition(
                    group=f"g{number}",
                    observation={"x": (math.cos(before), math.sin(before))},
                    action={"turn": turn},
                    next_observation={"x": (math.cos(angle), math.sin(angle))},
                )
            )
    return rows


@pytest.fixture(scope="module")
def data():
    return prepare_training_data(SPEC, _record())


@pytest.fixture(scope="module")
def good(data):
    model = WorldModel(SPEC, members=2, hidden=32)
    model.fit(data, epochs=60, batch_size=64, device="cpu", precision="fp32")
    return model


@pytest.fixture(scope="module")
def hasty(data):
    """A network that has learned little."""
    model = WorldModel(SPEC, members=2, hidden=32)
    model.fit(data, epochs=5, batch_size=64, device="cpu", precision="fp32")
    return model.fitted_model.ensemble


def _check(model, data, folder):
    return check_rollouts(model, folder, data.test.transitions, EnsembleNetwork)


def test_a_good_first_model_passes_and_is_measured(good, data, tmp_path):
    checked = _check(good.fitted_model, data, tmp_path)
    assert checked.problem == ""
    assert checked.metrics == {"rollout_error": good.metrics["rollout_error"]}
    assert 0 < checked.metrics["rollout_error"] < 0.3


def test_a_spec_that_does_not_ask_is_not_checked(good, data, tmp_path):
    model = good.fitted_model
    silent = replace(model, codec=replace(model.codec, spec=replace(SPEC, rollout_steps=0)))
    checked = _check(silent, data, tmp_path)
    assert (checked.problem, checked.metrics) == ("", {})


def test_windows_longer_than_the_episodes_are_refused(good, data, tmp_path):
    model = good.fitted_model
    long = replace(model, codec=replace(model.codec, spec=replace(SPEC, rollout_steps=21)))
    checked = _check(long, data, tmp_path)
    assert checked.metrics == {}
    assert re.fullmatch(
        r"states after 21 steps cannot be checked: the longest of \d+ held-out sequences has 20 "
        r"steps\. Lower rollout_steps, or record longer sequences",
        checked.problem,
    )


def test_a_model_must_beat_states_that_stay(data, tmp_path):
    network = build_seeded(EnsembleNetwork, NetworkShape.of(data.encoder, data.codec), 0)
    with torch.no_grad():
        for weight in network.weights:
            weight.mul_(3.0)  # an untrained network, whose states run away
    candidate = fit_candidates(data, network)["ensemble"]
    candidate = replace(candidate, weights={"x": (1.0, 0.0)})
    checked = _check(candidate, data, tmp_path)
    assert checked.problem == "after 5 steps its states do not beat states that stay as they are"
    assert checked.metrics["rollout_error"] > 0.5


def test_a_model_must_not_be_worse_than_the_one_in_use(good, hasty, data, tmp_path):
    good.save(tmp_path)
    assert _check(good.fitted_model, data, tmp_path).problem == ""
    decision = gate_publication(data, hasty, tmp_path, EnsembleNetwork)
    assert not decision.published
    own, other = (decision.metrics[f"{of}rollout_error"] for of in ("", "in_use."))
    assert own > other
    assert decision.reason == (
        f"after 5 steps its error is {own:.4f}, against {other:.4f} of the model in use"
    )


def test_a_better_model_replaces_the_one_in_use(good, hasty, data, tmp_path):
    WorldModel.from_fitted(fit_candidates(data, hasty)["blend"], {}).save(tmp_path)
    decision = gate_publication(data, good.fitted_model.ensemble, tmp_path, EnsembleNetwork)
    assert decision.published
    assert decision.metrics["rollout_error"] < decision.metrics["in_use.rollout_error"]


@pytest.mark.parametrize("fault", ["damaged", "of another spec"])
def test_a_model_in_use_that_cannot_be_compared_is_passed_over(good, data, tmp_path, fault):
    good.save(tmp_path)
    if fault == "damaged":
        (tmp_path / "model.json").write_text("{")
    else:
        model = good.fitted_model
        other = replace(model, codec=replace(model.codec, spec=replace(SPEC, rollout_steps=6)))
        WorldModel.from_fitted(other, {}).save(tmp_path)
    checked = _check(good.fitted_model, data, tmp_path)
    assert checked.problem == ""
    assert set(checked.metrics) == {"rollout_error"}
