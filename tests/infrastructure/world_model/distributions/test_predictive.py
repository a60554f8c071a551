import math

import pytest
import torch

from infrastructure.trajectories.encoding import TargetCodec
from infrastructure.world_model.distributions import (
    BoxDistribution,
    DiscreteDistribution,
    blend,
    predictive_distributions,
    shrink_to_base_rate,
)
from infrastructure.world_model.networks.loss import bound_log_variance


def _raw(means, log_variances, logits):
    return {
        "y.mean": torch.tensor(means)[:, None, None],
        "y.log_variance": torch.tensor(log_variances)[:, None, None],
        "label.logits": torch.tensor(logits)[:, None, :],
    }


def _predictions(mean, variance, chance, rows=1):
    every = torch.zeros(rows, dtype=torch.float64)
    return {
        "y": BoxDistribution(
            mean=every[:, None] + mean,
            variance=every[:, None] + variance,
        ),
        "label": DiscreteDistribution(probabilities=torch.tensor([[1 - chance, chance]] * rows)),
    }


def test_disagreement_of_members_widens_numbers_and_evens_labels(noise):
    agree = predictive_distributions(_raw([1.0, 1.0], [0.0, 0.0], [[0.0, 2.0]] * 2), noise.codec, 1)
    differ = predictive_distributions(
        _raw([3.0, -1.0], [0.0, 0.0], [[9.0, 0.0], [0.0, 9.0]]), noise.codec, 1
    )
    widened = differ["y"].variance[0, 0] / agree["y"].variance[0, 0]
    assert widened.item() == pytest.approx(5.0, rel=0.1)
    assert differ["y"].mean[0, 0] == pytest.approx(agree["y"].mean[0, 0])
    assert differ["label"].probabilities[0].tolist() == pytest.approx([0.5, 0.5])


def test_moments_come_back_in_recorded_units(noise):
    predicted = predictive_distributions(_raw([2.0], [math.log(4.0)], [[0.0, 0.0]]), noise.codec, 1)
    assert predicted["y"].mean[0].tolist() == pytest.approx([16.0, 7.0], abs=0.2)
    wide = bound_log_variance(torch.tensor(math.log(4.0))).exp().item()
    assert predicted["y"].variance[0, 0].item() == pytest.approx(9.0 * wide, rel=0.05)
    assert predicted["y"].variance[0, 1].item() == pytest.approx(0.007**2), "it never varied"


@pytest.mark.parametrize(("tail", "freedom"), [(None, None), (0.25, 4.0), (0.05, 20.0)])
def test_the_entropy_is_the_mean_loss_of_what_it_predicts(tail, freedom):
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(400_000, 1, generator=generator, dtype=torch.float64)
    if freedom is not None:  # of variance 1, as torch.distributions.StudentT has it
        squares = torch._standard_gamma(torch.full_like(normal, freedom / 2), generator=generator)
        normal = normal * (freedom / (2 * squares)).sqrt() * ((freedom - 2) / freedom) ** 0.5
    distribution = BoxDistribution(
        mean=torch.full((1, 1), 3.0, dtype=torch.float64),
        variance=torch.full((1, 1), 4.0, dtype=torch.float64),
        tail=None if tail is None else torch.tensor([tail], dtype=torch.float64),
    )
    mean_loss = distribution.nll(3.0 + 2.0 * normal).mean()
    assert float(distribution.entropy()) == pytest.approx(float(mean_loss), abs=0.01)


def test_out_of_distribution_rows_alone_are_shrunk_to_the_base_rate():
    predicted, base = (
        _predictions(21.0, 2.0, 0.8, rows=2),
        _predictions(1.0, 4.0, 0.2, rows=2),
    )
    shrunk = shrink_to_base_rate(predicted, base, torch.tensor([False, True]))
    assert shrunk["y"].mean[:, 0].tolist() == pytest.approx([21.0, 3.0])
    between = 0.1 * 0.9 * (21.0 - 1.0) ** 2
    assert shrunk["y"].variance[:, 0].tolist() == pytest.approx([2.0, 0.2 + 3.6 + between])
    assert shrunk["label"].probabilities[:, 1].tolist() == pytest.approx([0.8, 0.26])


def test_a_blend_is_its_parts_at_the_ends_and_a_mixture_between():
    ensemble, linear = _predictions(1.0, 1.0, 0.8), _predictions(5.0, 3.0, 0.2)
    base = _predictions(9.0, 5.0, 0.5)
    for weights, mean, variance, chance in (
        ((1, 0), 1, 1, 0.8),
        ((0, 1), 5, 3, 0.2),
        ((0, 0), 9, 5, 0.5),
        ((0.5, 0.5), 3, 2 + 4, 0.5),
        ((0, 0.5), 7, 4 + 4, 1 / 3),
    ):
        mixed = blend(ensemble, linear, base, dict.fromkeys(("y", "label"), weights))
        assert mixed["y"].mean.item() == pytest.approx(mean)
        assert mixed["y"].variance.item() == pytest.approx(variance)
        assert mixed["label"].probabilities[0, 1].item() == pytest.approx(chance)


def test_each_target_is_blended_by_its_own_weights():
    ensemble, linear = _predictions(1.0, 1.0, 0.8), _predictions(5.0, 3.0, 0.2)
    mixed = blend(ensemble, linear, linear, {"y": (0.0, 1.0), "label": (1.0, 0.0)})
    assert mixed["y"].mean.item() == 5.0
    assert mixed["label"].probabilities[0, 1].item() == pytest.approx(0.8)


def test_a_model_keeps_the_smallest_variance_that_it_was_trained_with(noise):
    former = noise.codec.to_json()
    del former["min_log_variance"]  # as an earlier release saved it
    least = [
        predictive_distributions(_raw([0.0], [-1e4], [[0.0, 0.0]]), codec, 1)["y"].variance[0, 0]
        for codec in (noise.codec, TargetCodec.from_json(noise.codec.spec, former))
    ]
    assert (least[1] / least[0]).log().item() == pytest.approx(14.0 - 8.0)
