import json
import math
from dataclasses import replace

import pytest
import torch

from infrastructure.agent_contract.transition import Box, Discrete, Transition, TransitionSpec
from infrastructure.trajectories.encoding.targets import TargetCodec
from infrastructure.world_model.distributions.calibration import Calibration
from infrastructure.world_model.distributions.predictive import (
    BoxDistribution,
    DiscreteDistribution,
    base_rate_distributions,
    blend,
    predictive_distributions,
    shrink_to_base_rate,
)
from infrastructure.world_model.fitting.scoring import measure
from infrastructure.world_model.networks.loss import bound_log_variance

SPEC = TransitionSpec(
    observation={"x": Box()},
    action={},
    targets={"y": Box(shape=(2,)), "label": Discrete(values=("no", "yes"))},
    success=("label", "yes"),
)


def _transitions(rows=4000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(rows, generator=generator).tolist()
    chance = torch.rand(rows, generator=generator).tolist()
    return [
        Transition(
            group=f"g{row % 50}",
            observation={"x": 0.0},
            action={},
            next_observation={"y": (10 + 3 * noise[row], 7.0), "label": ("no", "yes")[c < 0.25]},
        )
        for row, c in enumerate(chance)
    ]


@pytest.fixture(scope="module")
def transitions():
    return _transitions()


@pytest.fixture(scope="module")
def codec(transitions):
    return TargetCodec.fit(SPEC, transitions)


@pytest.fixture(scope="module")
def outcomes(codec, transitions):
    return codec.outcomes(transitions)


def _raw(means, log_variances, logits):
    return {
        "y.mean": torch.tensor(means)[:, None, None],
        "y.log_variance": torch.tensor(log_variances)[:, None, None],
        "label.logits": torch.tensor(logits)[:, None, :],
    }


def test_agreeing_members_are_sure_and_disagreeing_ones_are_not(codec):
    agree = predictive_distributions(_raw([1.0, 1.0], [0.0, 0.0], [[0.0, 2.0]] * 2), codec, 1)
    differ = predictive_distributions(
        _raw([3.0, -1.0], [0.0, 0.0], [[9.0, 0.0], [0.0, 9.0]]), codec, 1
    )
    for name in ("y", "label"):
        assert agree[name].epistemic.item() == pytest.approx(0.0, abs=1e-9)
    assert differ["y"].epistemic.item() == pytest.approx(4 / 5, abs=0.02)
    assert differ["label"].epistemic.item() > 0.95
    assert differ["y"].mean[0, 0] == pytest.approx(agree["y"].mean[0, 0])
    assert differ["label"].probabilities[0].tolist() == pytest.approx([0.5, 0.5])


def test_moments_come_back_in_recorded_units(codec):
    predicted = predictive_distributions(_raw([2.0], [math.log(4.0)], [[0.0, 0.0]]), codec, 1)
    assert predicted["y"].mean[0].tolist() == pytest.approx([16.0, 7.0], abs=0.2)
    wide = bound_log_variance(torch.tensor(math.log(4.0))).exp().item()
    assert predicted["y"].variance[0, 0].item() == pytest.approx(9.0 * wide, rel=0.05)
    assert predicted["y"].variance[0, 1].item() == pytest.approx(0.007**2), "it never varied"


def test_the_base_rate_has_no_skill_and_is_calibrated(codec, outcomes):
    metrics = measure(base_rate_distributions(codec, 4000), outcomes, codec)
    assert metrics["nll_skill"] == 0.0
    assert metrics["label.auroc"] == 0.5
    assert metrics["label.ece"] < 1e-3
    assert metrics["y.coverage_90"] == pytest.approx(0.9, abs=0.02)


def test_what_nobody_decides_by_decides_nothing(transitions, codec, outcomes):
    """A model that is far off on ``y`` is judged by the success label where the spec has one."""
    off = base_rate_distributions(codec, 4000)
    off["y"] = replace(off["y"], mean=off["y"].mean + 100.0)
    assert measure(off, outcomes, codec)["nll_skill"] == 0.0
    assert measure(off, outcomes, codec)["y.nll_skill"] < -100.0
    without = replace(SPEC, success=None)
    assert measure(off, outcomes, TargetCodec.fit(without, transitions))["nll_skill"] < -50.0


def _outlook(mean, variance, chance, epistemic, rows=1):
    every = torch.zeros(rows, dtype=torch.float64)
    return {
        "y": BoxDistribution(
            mean=every[:, None] + mean,
            variance=every[:, None] + variance,
            epistemic=every + epistemic,
        ),
        "label": DiscreteDistribution(
            probabilities=torch.tensor([[1 - chance, chance]] * rows), epistemic=every + epistemic
        ),
    }


def test_doubt_leaves_a_tenth_of_what_is_claimed_and_only_where_it_is_due():
    claimed, base = _outlook(21.0, 2.0, 0.8, 0.4, rows=2), _outlook(1.0, 4.0, 0.2, 0.0, rows=2)
    doubted = shrink_to_base_rate(claimed, base, torch.tensor([False, True]))
    assert doubted["y"].mean[:, 0].tolist() == pytest.approx([21.0, 3.0])
    between = 0.1 * 0.9 * (21.0 - 1.0) ** 2
    assert doubted["y"].variance[:, 0].tolist() == pytest.approx([2.0, 0.2 + 3.6 + between])
    assert doubted["label"].probabilities[:, 1].tolist() == pytest.approx([0.8, 0.26])
    for name in ("y", "label"):
        assert doubted[name].epistemic.tolist() == pytest.approx([0.4, 0.94])


def test_a_blend_is_its_parts_at_the_ends_and_a_mixture_between():
    ensemble, linear = _outlook(1.0, 1.0, 0.8, 0.4), _outlook(5.0, 3.0, 0.2, 0.0)
    for weight, mean, variance, chance in ((1, 1, 1, 0.8), (0, 5, 3, 0.2), (0.5, 3, 2 + 4, 0.5)):
        mixed = blend(ensemble, linear, weight)
        assert mixed["y"].mean.item() == pytest.approx(mean)
        assert mixed["y"].variance.item() == pytest.approx(variance)
        assert mixed["label"].probabilities[0, 1].item() == pytest.approx(chance)
        assert mixed["y"].epistemic.item() == mixed["label"].epistemic.item() == 0.4


def test_calibration_mends_a_model_that_is_too_sure(codec, outcomes):
    rows = len(outcomes["label"])
    base = base_rate_distributions(codec, rows)
    sure = {
        "y": BoxDistribution(
            mean=base["y"].mean, variance=base["y"].variance / 16, epistemic=torch.zeros(rows)
        ),
        "label": DiscreteDistribution(
            probabilities=(base["label"].probabilities.log() * 4).softmax(1),
            epistemic=torch.zeros(rows),
        ),
    }
    before = measure(sure, outcomes, codec)
    calibration = Calibration.fit(sure, outcomes, codec)
    fresh = codec.outcomes(_transitions(seed=1))
    after = measure(calibration.apply(sure, codec), fresh, codec)
    assert before["y.coverage_90"] < 0.5
    assert after["y.coverage_90"] == pytest.approx(0.9, abs=0.02)
    assert calibration.temperatures["label"] == pytest.approx(4.0, rel=0.2)
    assert before["label.ece"] > 0.1
    assert after["label.ece"] < 0.03
    assert after["nll"] < before["nll"] - 0.3


def test_variances_stay_within_bounds():
    bounded = bound_log_variance(torch.tensor([-1e4, 0.0, 1e4]))
    assert bounded.tolist() == pytest.approx([-8.0, 0.0, 4.0], abs=0.03)


def test_a_ranking_on_a_scale_of_its_own_becomes_a_probability(codec, transitions, outcomes):
    """Platt's line: log-odds that are three times too steep and shifted are put right."""
    generator = torch.Generator().manual_seed(3)
    truth = torch.randn(4000, generator=generator, dtype=torch.float64) - 1.0
    labels = (torch.rand(4000, generator=generator, dtype=torch.float64) < truth.sigmoid()).long()
    wrong = (3.0 * truth + 4.0).sigmoid()
    raw = {
        "label": DiscreteDistribution(
            probabilities=torch.stack([1 - wrong, wrong], 1), epistemic=torch.zeros(4000)
        )
    }
    only = replace(
        codec, standardisers={}, spec=replace(SPEC, targets={"label": SPEC.targets["label"]})
    )
    happened = {"label": labels}
    calibrated = Calibration.fit(raw, happened, only).apply(raw, only)["label"].probabilities
    assert calibrated.sum(1).tolist() == pytest.approx([1.0] * 4000)
    assert measure(raw, happened, only)["label.ece"] > 0.2
    assert (calibrated[:, 1] - truth.sigmoid()).abs().mean() < 0.02


@pytest.fixture
def label_only(codec):
    """Success is all there is to predict."""
    targets = {"label": SPEC.targets["label"]}
    return replace(codec, standardisers={}, spec=replace(SPEC, targets=targets))


def test_few_rows_that_all_went_one_way_do_not_make_it_certain(label_only):
    even = {
        "label": DiscreteDistribution(
            probabilities=torch.full((20, 2), 0.5, dtype=torch.float64), epistemic=torch.zeros(20)
        )
    }
    happened = {"label": torch.ones(20, dtype=torch.int64)}
    slope, offset = Calibration.fit(even, happened, label_only).success
    assert slope == pytest.approx(1.0)
    assert 20 * (1 - torch.tensor(offset).sigmoid().item()) == pytest.approx(2 * offset, rel=1e-3)


def test_a_ranking_that_is_right_but_timid_is_not_made_steeper_without_end(label_only):
    truth = torch.arange(400) % 2
    chance = 0.5 + 0.01 * (2.0 * truth.double() - 1.0)
    timid = {
        "label": DiscreteDistribution(
            probabilities=torch.stack([1 - chance, chance], 1), epistemic=torch.zeros(400)
        )
    }
    assert Calibration.fit(timid, {"label": truth}, label_only).success[0] == 4.0


def test_an_interval_from_few_exact_rows_keeps_some_width(codec):
    few = _transitions(rows=5)
    outcomes = codec.outcomes(few)
    exact = base_rate_distributions(codec, 5)
    exact["y"] = replace(exact["y"], mean=outcomes["y"])
    assert Calibration.fit(exact, outcomes, codec).scales["y"] == (0.01, 1.0)


def test_a_calibration_is_the_same_when_read_again(codec, outcomes):
    calibration = Calibration.fit(base_rate_distributions(codec, 4000), outcomes, codec)
    assert calibration.success != (1.0, 0.0)
    assert Calibration.from_json(json.loads(json.dumps(calibration.to_json()))) == calibration
