from dataclasses import replace

import pytest
import torch

from infrastructure.trajectories.encoding import TargetCodec
from infrastructure.world_model.distributions import BoxDistribution, DiscreteDistribution
from infrastructure.world_model.distributions.confidence import confidence
from infrastructure.world_model.distributions.metrics import expected_calibration_error


def _confidence(codec, chance_N, deviation_N):
    zeros_N = torch.zeros(len(chance_N), dtype=torch.float64)
    variance_NC = torch.stack([deviation_N.square(), zeros_N + 1.0], 1).double()
    predicted = {
        "y": BoxDistribution(mean=torch.zeros_like(variance_NC), variance=variance_NC),
        "label": DiscreteDistribution(probabilities=torch.stack([1 - chance_N, chance_N], 1)),
    }
    return confidence(predicted, codec)


def test_it_is_the_probability_of_the_predicted_label(noise):
    deviation_N = torch.tensor([0.1, 10.0])
    found_N = _confidence(noise.codec, torch.tensor([0.2, 0.6]), deviation_N)
    assert found_N.tolist() == pytest.approx([0.8, 0.6])


@pytest.mark.parametrize(("share", "expected"), [(0.25, 0.75), (2.0, 0.0)])
def test_of_a_number_it_is_the_share_of_removed_spread(noise, share, expected):
    """The numbers of ``y`` have the standard deviation 3; its constant dimension does not count."""
    targets = {"y": noise.spec.targets["y"]}
    codec = TargetCodec.fit(replace(noise.spec, targets=targets, success=None), noise.transitions)
    deviation_N = torch.tensor([share * codec.standardisers["y"].scale[0]])
    assert _confidence(codec, torch.tensor([0.9]), deviation_N).tolist() == pytest.approx(
        [expected]
    )


def test_without_a_success_label_it_is_the_mean_over_targets(noise):
    codec = TargetCodec.fit(replace(noise.spec, success=None), noise.transitions)
    deviation_N = torch.tensor([codec.standardisers["y"].scale[0] / 2])
    assert _confidence(codec, torch.tensor([0.9]), deviation_N).tolist() == pytest.approx([0.7])


def test_a_calibrated_model_is_right_as_often_as_it_says(noise):
    generator = torch.Generator().manual_seed(0)
    chance = torch.rand(5000, generator=generator, dtype=torch.float64)
    happened = torch.rand(5000, generator=generator, dtype=torch.float64) < chance
    found_N = _confidence(noise.codec, chance, torch.ones(5000))
    assert expected_calibration_error(found_N, (chance > 0.5) == happened) < 0.03
