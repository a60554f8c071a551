from statistics import NormalDist

import pytest
import torch

from infrastructure.world_model.distributions import BoxDistribution, DiscreteDistribution
from infrastructure.world_model.distributions.averaging import average_rows, replace_rows
from infrastructure.world_model.distributions.metrics import Z_90


def _predicted(means, chances):
    means_NC = torch.tensor(means, dtype=torch.float64)[:, None]
    chances_N = torch.tensor(chances, dtype=torch.float64)
    return {
        "y": BoxDistribution(
            mean=means_NC,
            variance=torch.ones_like(means_NC),
            half_width=torch.full_like(means_NC, 2.0),
        ),
        "label": DiscreteDistribution(probabilities=torch.stack([1 - chances_N, chances_N], 1)),
    }


def test_a_mixture_has_the_mean_and_the_spread_of_its_rows():
    weights_MR = torch.tensor([[0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)
    mixed = average_rows(_predicted([0.0, 4.0, 1.0, 3.0], [0.0, 1.0, 0.2, 0.6]), weights_MR)
    assert mixed["y"].mean[:, 0].tolist() == [2.0, 3.0]
    assert mixed["y"].variance[:, 0].tolist() == [1.0 + 4.0, 1.0]
    wide, narrow = mixed["y"].half_width_90()[:, 0].tolist()
    row = NormalDist(2.0, 2.0 / Z_90)  # the other one is its mirror image
    assert row.cdf(wide) - row.cdf(-wide) == pytest.approx(0.9, abs=0.001)
    assert narrow == pytest.approx(2.0, rel=0.001)
    assert mixed["label"].probabilities[:, 1].tolist() == [0.5, 0.6]


def test_rows_are_replaced_in_their_places():
    whole = _predicted([0.0, 0.0, 0.0, 0.0], [0.5] * 4)
    parts = [_predicted([1.0], [0.1]), _predicted([2.0, 3.0], [0.2, 0.3])]
    replaced = replace_rows(whole, torch.tensor([True, False, True, True]), parts)
    assert replaced["y"].mean[:, 0].tolist() == [1.0, 0.0, 2.0, 3.0]
    assert replaced["label"].probabilities[:, 1].tolist() == pytest.approx([0.1, 0.5, 0.2, 0.3])
    assert whole["y"].mean[:, 0].tolist() == [0.0] * 4
