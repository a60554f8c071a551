from dataclasses import replace

import pytest
import torch

from infrastructure.trajectories.encoding import TargetCodec
from infrastructure.world_model.distributions import BoxDistribution, DiscreteDistribution
from infrastructure.world_model.distributions.confidence import Confidence
from infrastructure.world_model.distributions.metrics import auroc, expected_calibration_error


def _confidence(codec, chance_N, deviation_N, ood_N=None):
    rows = len(chance_N)
    zeros_N = torch.zeros(rows, dtype=torch.float64)
    variance_NC = torch.stack([deviation_N.square(), zeros_N + 1.0], 1).double()
    predicted = {
        "y": BoxDistribution(
            mean=torch.zeros_like(variance_NC), variance=variance_NC, epistemic=zeros_N
        ),
        "label": DiscreteDistribution(
            probabilities=torch.stack([1 - chance_N, chance_N], 1), epistemic=zeros_N
        ),
    }
    return Confidence.of(predicted, codec, zeros_N.bool() if ood_N is None else ood_N)


def test_it_is_the_probability_of_the_label_and_the_share_of_removed_spread(noise):
    """The numbers of ``y`` have the standard deviation 3; its constant dimension does not count."""
    usual = noise.codec.standardisers["y"].scale[0]
    confidence = _confidence(
        noise.codec, torch.tensor([0.2, 0.6]), torch.tensor([usual / 4, 2 * usual])
    )
    assert confidence.by_target["label"].tolist() == pytest.approx([0.8, 0.6])
    assert confidence.by_target["y"].tolist() == pytest.approx([0.75, 0.0])
    assert confidence.overall.tolist() == pytest.approx([0.8, 0.6])  # of the success target


def test_without_a_success_label_it_is_the_mean_over_targets(noise):
    codec = TargetCodec.fit(replace(noise.spec, success=None), noise.transitions)
    usual = codec.standardisers["y"].scale[0]
    confidence = _confidence(codec, torch.tensor([0.9]), torch.tensor([usual / 2]))
    assert confidence.overall.tolist() == pytest.approx([0.7])


def test_out_of_distribution_it_is_at_most_a_tenth(noise):
    confidence = _confidence(
        noise.codec, torch.tensor([0.99]), torch.tensor([0.01]), torch.tensor([True])
    )
    assert confidence.by_target["label"].item() == pytest.approx(0.099)
    assert confidence.by_target["y"].item() < 0.1


def test_it_tells_where_a_calibrated_model_is_right(noise):
    generator = torch.Generator().manual_seed(0)
    chance = torch.rand(5000, generator=generator, dtype=torch.float64)
    happened = torch.rand(5000, generator=generator, dtype=torch.float64) < chance
    confidence = _confidence(noise.codec, chance, torch.ones(5000)).by_target["label"]
    right = (chance > 0.5) == happened
    assert auroc(confidence, right) == auroc(torch.maximum(chance, 1 - chance), right) > 0.7
    assert expected_calibration_error(confidence, right) < 0.03
