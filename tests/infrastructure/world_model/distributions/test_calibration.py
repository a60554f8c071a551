import json
from dataclasses import replace

import pytest
import torch

from infrastructure.world_model.distributions import (
    BoxDistribution,
    Calibration,
    DiscreteDistribution,
    base_rate_distributions,
)
from infrastructure.world_model.distributions.calibration import fit_temperature
from infrastructure.world_model.distributions.metrics import Z_90
from infrastructure.world_model.fitting.scoring import measure


@pytest.fixture(scope="module")
def codec(noise):
    return noise.codec


@pytest.fixture(scope="module")
def outcomes(noise):
    return noise.outcomes


@pytest.fixture
def label_only(noise):
    """A codec whose only target is the success label."""
    targets = {"label": noise.spec.targets["label"]}
    return replace(noise.codec, standardisers={}, spec=replace(noise.spec, targets=targets))


def test_an_overconfident_model_is_corrected(noise, codec, outcomes):
    rows = len(outcomes["label"])
    base = base_rate_distributions(codec, rows)
    sure = {
        "y": BoxDistribution(mean=base["y"].mean, variance=base["y"].variance / 16),
        "label": DiscreteDistribution(
            probabilities=(base["label"].probabilities.log() * 4).softmax(1),
        ),
    }
    before = measure(sure, outcomes, codec)
    calibration = Calibration.fit(sure, outcomes, codec)
    fresh = codec.outcomes(noise.record(seed=1))
    after = measure(calibration.apply(sure, codec), fresh, codec)
    assert before["y.coverage_90"] < 0.5
    assert after["y.coverage_90"] == pytest.approx(0.9, abs=0.02)
    assert calibration.temperatures["label"] == pytest.approx(4.0, rel=0.2)
    assert before["label.ece"] > 0.1
    assert after["label.ece"] < 0.03
    assert after["nll"] < before["nll"] - 0.3


def test_scores_on_another_scale_become_probabilities(label_only):
    """Platt scaling corrects log-odds that are three times too steep and shifted."""
    generator = torch.Generator().manual_seed(3)
    truth = torch.randn(4000, generator=generator, dtype=torch.float64) - 1.0
    labels = (torch.rand(4000, generator=generator, dtype=torch.float64) < truth.sigmoid()).long()
    wrong = (3.0 * truth + 4.0).sigmoid()
    raw = {"label": DiscreteDistribution(probabilities=torch.stack([1 - wrong, wrong], 1))}
    happened = {"label": labels}
    calibrated = (
        Calibration.fit(raw, happened, label_only).apply(raw, label_only)["label"].probabilities
    )
    assert calibrated.sum(1).tolist() == pytest.approx([1.0] * 4000)
    assert measure(raw, happened, label_only)["label.ece"] > 0.2
    assert (calibrated[:, 1] - truth.sigmoid()).abs().mean() < 0.02


def test_few_rows_of_one_outcome_do_not_give_certainty(label_only):
    even = {
        "label": DiscreteDistribution(probabilities=torch.full((20, 2), 0.5, dtype=torch.float64))
    }
    happened = {"label": torch.ones(20, dtype=torch.int64)}
    slope, offset = Calibration.fit(even, happened, label_only).success
    assert slope == pytest.approx(1.0)
    assert 20 * (1 - torch.tensor(offset).sigmoid().item()) == pytest.approx(2 * offset, rel=1e-3)


def test_the_slope_of_a_timid_ranking_is_bounded(label_only):
    truth = torch.arange(400) % 2
    chance = 0.5 + 0.01 * (2.0 * truth.double() - 1.0)
    timid = {"label": DiscreteDistribution(probabilities=torch.stack([1 - chance, chance], 1))}
    assert Calibration.fit(timid, {"label": truth}, label_only).success[0] == 4.0


def test_few_exact_rows_are_no_proof_of_certainty(noise, codec):
    few = noise.record(rows=5)
    outcomes = codec.outcomes(few)
    exact = base_rate_distributions(codec, 5)
    exact["y"] = replace(exact["y"], mean=outcomes["y"])
    calibration = Calibration.fit(exact, outcomes, codec)
    assert calibration.scales["y"] == (1.0, 1.0)
    assert calibration.intervals["y"] == (Z_90, Z_90)


def _labelled(log_odds, happened):
    """Predictions of two labels by their log-odds, and the labels."""
    chance = log_odds.sigmoid()
    predicted = DiscreteDistribution(probabilities=torch.stack([1 - chance, chance], 1))
    return predicted, happened.long()


@pytest.mark.parametrize("steepness", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(7))
def test_the_temperature_of_a_small_set_stays_sane(seed, steepness):
    """A hundred rows that every threshold separates say little about certainty."""
    generator = torch.Generator().manual_seed(seed)
    score = torch.randn(100, generator=generator, dtype=torch.float64)
    predicted, label = _labelled(steepness * 6.0 * score, score > 0)
    assert 0.5 < fit_temperature(predicted, label, None) < 2.0
    few = replace(predicted, probabilities=predicted.probabilities[:40])
    assert fit_temperature(few, label[:40], None) == 1.0


@pytest.mark.parametrize("seed", range(20))
def test_calibration_keeps_calibrated_labels(seed):
    generator = torch.Generator().manual_seed(seed)
    log_odds = 1.5 * torch.randn(500, generator=generator, dtype=torch.float64)
    chance = torch.rand(500, generator=generator, dtype=torch.float64)
    predicted, label = _labelled(log_odds, chance < log_odds.sigmoid())
    assert fit_temperature(predicted, label, None) == pytest.approx(1.0, abs=0.35)


def test_a_calibration_of_an_earlier_release_keeps_its_meaning(noise, codec):
    """It has scales of Gaussians alone, which widened the interval and the deviation alike."""
    saved = {"temperatures": {}, "scales": {"y": [2.0, 1.0]}, "success": [1.0, 0.0]}
    base = base_rate_distributions(codec, 3)
    after = Calibration.from_json(saved).apply(base, codec)["y"]
    assert after.variance[:, 0].tolist() == pytest.approx((4 * base["y"].variance[:, 0]).tolist())
    assert after.half_width_90()[:, 0].tolist() == pytest.approx(
        (Z_90 * after.variance[:, 0].sqrt()).tolist()
    )
    assert after.tail.tolist() == [0.0, 0.0]


def test_a_calibration_is_the_same_when_read_again(codec, outcomes):
    predicted = base_rate_distributions(codec, 4000)
    even = torch.full((4000, 2), 0.5, dtype=torch.float64)
    predicted["label"] = replace(predicted["label"], probabilities=even)
    calibration = Calibration.fit(predicted, outcomes, codec)
    assert calibration.success != (1.0, 0.0)
    assert Calibration.from_json(json.loads(json.dumps(calibration.to_json()))) == calibration
