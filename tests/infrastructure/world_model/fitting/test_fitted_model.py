import random
from dataclasses import replace

import pytest
import torch

from infrastructure.agent_contract.transition import Box, Discrete, Transition, TransitionSpec
from infrastructure.world_model.fitting import (
    fit_candidates,
    prepare_training_data,
    select_family,
)
from infrastructure.world_model.fitting.scoring import measure, selection_loss
from infrastructure.world_model.networks import EnsembleNetwork, NetworkShape, build_seeded


@pytest.fixture(scope="module")
def data(spec, record):
    return prepare_training_data(spec, record(groups=20, rows=10))


@pytest.fixture(scope="module")
def untrained(data):
    shape = NetworkShape.of(data.encoder, data.codec)
    return build_seeded(lambda shape: EnsembleNetwork(shape, members=2, hidden=8), shape, 0)


@pytest.fixture(scope="module")
def candidates(data, untrained):
    return fit_candidates(data, untrained)


def test_each_family_has_its_weight(candidates):
    assert {name: model.family for name, model in candidates.items()} == {
        "linear": "linear",
        "ensemble": "ensemble",
        "blend": "blend",
    }
    assert set(candidates["linear"].weights.values()) == {(0.0, 1.0)}
    assert {second for _, second in candidates["ensemble"].weights.values()} == {0.0}
    assert candidates["blend"].weights.keys() == {"outcome", "x", "reward"}


def test_the_family_with_the_lowest_loss_on_the_calibration_groups_is_selected(candidates, data):
    losses = {
        name: selection_loss(model.predict(data.calibration.features), data.calibration, data.codec)
        for name, model in candidates.items()
    }
    selected = select_family(candidates, data)
    assert losses[selected] == min(losses.values())
    assert selected != "ensemble"  # it was not trained


@pytest.mark.process
def test_the_test_groups_are_not_read(data, untrained, candidates):
    without = replace(data, parts={k: v for k, v in data.parts.items() if k != "test"})
    again = fit_candidates(without, untrained)
    assert again.keys() == candidates.keys()
    for name, model in again.items():
        assert model.calibration == candidates[name].calibration
        assert model.weights == candidates[name].weights


def _two_targets(rows=1500):
    """One target is linear in the input, the other the sign of a product."""
    generator = random.Random(0)
    for number in range(rows):
        x = (generator.gauss(0, 1), generator.gauss(0, 1))
        noise = generator.gauss(0, 0.3)
        yield Transition(
            group=f"g{number}",
            observation={"x": x},
            action={},
            next_observation={"line": x[0] - x[1] + noise, "bend": str(x[0] * x[1] > 0)},
        )


class _KnowsTheProduct(torch.nn.Module):
    """Right about ``bend``, ignorant about ``line``."""

    def forward(self, inputs):
        x_N2 = inputs["dense"]
        odds_N = 8.0 * x_N2[:, 0] * x_N2[:, 1]
        zeros_N1 = torch.zeros(len(x_N2), 1)
        return {
            "line.mean": zeros_N1[None],
            "line.log_variance": zeros_N1[None],
            "bend.logits": torch.stack([-odds_N, odds_N], 1)[None],
        }


def test_each_target_takes_the_model_that_is_right_about_it():
    spec = TransitionSpec(
        observation={"x": Box(shape=(2,))},
        action={},
        targets={"line": Box(), "bend": Discrete(values=("False", "True"))},
    )
    data = prepare_training_data(spec, _two_targets())
    candidates = fit_candidates(data, _KnowsTheProduct())
    blended = candidates["blend"]
    assert blended.weights["line"][0] < 0.2
    assert blended.weights["line"][1] > 0.8
    assert blended.weights["bend"][0] > 0.7
    assert blended.weights["bend"][1] < 0.3
    assert select_family(candidates, data) == "blend"
    losses = {
        family: measure(model.predict(data.test.features), data.test.outcomes, data.codec)
        for family, model in candidates.items()
    }
    for target, right in (("line", "linear"), ("bend", "ensemble")):
        skill = {family: metrics[f"{target}.nll_skill"] for family, metrics in losses.items()}
        assert skill["blend"] > skill[right] - 0.02


@pytest.mark.parametrize("seed", range(4))
def test_where_no_input_tells_anything_the_base_rate_answers(seed):
    generator = random.Random(seed)
    rows = [
        replace(row, next_observation={"bend": str(generator.random() < 0.5), "line": 0.0})
        for row in _two_targets(300)
    ]
    spec = TransitionSpec(
        observation={"x": Box(shape=(2,))},
        action={},
        targets={"bend": Discrete(values=("False", "True"))},
        success=("bend", "True"),
    )
    data = prepare_training_data(spec, rows)
    candidates = fit_candidates(data, _KnowsTheProduct())
    model = candidates[select_family(candidates, data)]
    assert candidates["ensemble"].weights["bend"] == (0.0, 0.0)
    stated = model.predict(data.test.features)["bend"].probabilities
    assert (stated - torch.tensor(data.codec.frequencies["bend"])).abs().max() < 0.1


def test_recorded_transitions_are_predicted_from_observation_and_action(candidates, data):
    model, part = candidates["blend"], data.test
    direct = model.predict(part.features)
    recorded = model.predict_transitions(part.transitions)
    for name in ("outcome", "x", "reward"):
        first, second = (vars_of(each[name]) for each in (direct, recorded))
        assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def vars_of(distribution):
    return [getattr(distribution, name) for name in type(distribution).__slots__]


def test_recalibration_changes_the_calibration_alone(candidates, data):
    model = candidates["linear"]
    rows = [replace(t, propensity=0.5) for t in data.test.transitions]
    assert "not recorded" in model.policy_shift_warning
    again = model.recalibrated(rows)
    assert again.calibration != model.calibration
    assert "not recorded" not in again.policy_shift_warning
    unchanged = replace(
        again,
        calibration=model.calibration,
        policy_shift_warning=model.policy_shift_warning,
    )
    assert unchanged == model
