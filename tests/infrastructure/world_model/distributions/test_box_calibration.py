"""Noise of known scale and family, predicted with a standard deviation that is wrong."""

import pytest
import torch

from infrastructure.world_model.distributions import BoxDistribution
from infrastructure.world_model.distributions.box_calibration import BoxCalibration
from infrastructure.world_model.distributions.metrics import Z_90, coverage

ROWS, FRESH = 1000, 4000
ONE = torch.tensor([True])


def _noise(family, rows, generator):
    """Standard normal noise, or Student's with 5 degrees of freedom and standard deviation 1."""
    normal_N = torch.randn(rows, generator=generator, dtype=torch.float64)
    if family == "gaussian":
        return normal_N
    square_5N = torch.randn(5, rows, generator=generator, dtype=torch.float64).square()
    return normal_N / square_5N.mean(0).sqrt() * (3 / 5) ** 0.5


def _predicted(deviation_N):
    return BoxDistribution(
        mean=torch.zeros(len(deviation_N), 1, dtype=torch.float64),
        variance=deviation_N.square()[:, None],
    )


def _fitted_and_fresh(family, scale, stated, seed, rows=ROWS, groups=None):
    """Calibration on *rows* values with a deviation of *scale*, and fresh predictions of it."""
    generator = torch.Generator().manual_seed(seed)
    value_N = scale * _noise(family, rows + FRESH, generator)
    deviation_N = torch.full_like(value_N, stated)
    calibration = BoxCalibration.fit(
        _predicted(deviation_N[:rows]), value_N[:rows, None], ONE, groups
    )
    before = _predicted(deviation_N[rows:])
    return calibration, before, calibration.apply(before), value_N[rows:, None]


@pytest.mark.parametrize("family", ["gaussian", "student"])
@pytest.mark.parametrize("scale", [0.01, 1.0, 300.0])
@pytest.mark.parametrize("wrong", [0.05, 0.5, 1.0, 2.0, 20.0])
def test_the_stated_deviation_is_the_error_and_the_interval_covers(family, scale, wrong):
    gains = []
    for seed in range(4):
        _, before, after, value = _fitted_and_fresh(family, scale, scale * wrong, seed)
        ratio = (value.square().mean() / after.variance.mean()).sqrt().item()
        assert 0.8 < ratio < 1.25
        share = coverage(after.mean, after.half_width_90(), value)
        assert 0.86 < share < 0.94  # 0.9 and four standard errors of a quantile of 1,000 rows
        gains.append((before.nll(value) - after.nll(value)).mean().item())
    assert sum(gains) / len(gains) > -1.0 / ROWS


@pytest.mark.parametrize("family", ["gaussian", "student"])
def test_intervals_cover_nine_in_ten_on_average(family):
    shares = [
        coverage(after.mean, after.half_width_90(), value)
        for _, _, after, value in (_fitted_and_fresh(family, 1.0, 3.0, seed) for seed in range(20))
    ]
    assert 0.88 < sum(shares) / len(shares) < 0.92


def test_a_tail_is_chosen_where_it_wins_on_other_groups():
    heavy, *_ = _fitted_and_fresh("student", 1.0, 3.0, 0)
    light, *_ = _fitted_and_fresh("gaussian", 1.0, 3.0, 0)
    assert heavy.tail[0] >= 0.1
    assert light.tail[0] <= 0.05


def test_outliers_widen_the_deviation_but_not_the_interval():
    """As where a simulator clips: 99 small errors, then a large one."""
    generator = torch.Generator().manual_seed(0)
    value_N = 0.01 * torch.randn(2000, generator=generator, dtype=torch.float64)
    value_N[::100] *= 50
    calibration = BoxCalibration.fit(
        _predicted(torch.full_like(value_N, 0.1)), value_N[:, None], ONE
    )
    after = calibration.apply(_predicted(torch.full_like(value_N, 0.1)))
    rmse = value_N.square().mean().sqrt().item()
    assert after.variance.mean().sqrt().item() == pytest.approx(rmse, rel=0.01)
    assert after.half_width_90().mean().item() == pytest.approx(0.0165, rel=0.1)
    assert calibration.tail[0] > 0.3


def test_deviations_that_are_too_alike_are_spread():
    generator = torch.Generator().manual_seed(1)
    truth_N = torch.randn(3000, generator=generator, dtype=torch.float64).exp()
    value_N = truth_N * torch.randn(3000, generator=generator, dtype=torch.float64)
    calibration = BoxCalibration.fit(_predicted(3 * truth_N.sqrt()), value_N[:, None], ONE)
    after = calibration.apply(_predicted(3 * truth_N.sqrt()))
    assert calibration.power[0] == pytest.approx(2.0, rel=0.15)
    usual_N = truth_N <= truth_N.quantile(0.95)
    assert (after.variance[usual_N, 0].sqrt() / truth_N[usual_N]).log().abs().max() < 0.4


def test_a_power_ends_at_the_edge_of_the_deviations_it_was_fitted_on():
    generator = torch.Generator().manual_seed(1)
    truth_N = torch.randn(3000, generator=generator, dtype=torch.float64).exp()
    value_N = truth_N * torch.randn(3000, generator=generator, dtype=torch.float64)
    deviation_N = 3 * truth_N.sqrt()
    calibration = BoxCalibration.fit(_predicted(deviation_N), value_N[:, None], ONE)
    assert calibration.edge[0] == pytest.approx(deviation_N.quantile(0.95).item())
    beyond = calibration.edge[0] * torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    stated_N = calibration.apply(_predicted(beyond)).variance[:, 0].sqrt()
    assert (stated_N / stated_N[0]).tolist() == pytest.approx([1.0, 10.0, 100.0])


@pytest.mark.parametrize("rows", [20, 60, 300])
def test_what_is_right_already_hardly_changes(rows):
    losses = []
    for seed in range(40):
        calibration, before, after, value = _fitted_and_fresh("gaussian", 1.0, 1.0, seed, rows=rows)
        assert 0.5 < calibration.scale[0] < 1.7
        losses.append((after.nll(value) - before.nll(value)).mean().item())
    assert sum(losses) / len(losses) < 0.5 / rows


def test_one_group_is_no_evidence():
    calibration, *_ = _fitted_and_fresh("gaussian", 1.0, 9.0, 0, groups=["g"] * ROWS)
    assert (calibration.scale, calibration.power, calibration.tail) == ((1.0,), (1.0,), (0.0,))


def test_a_constant_dimension_stays_as_it_is():
    predicted = _predicted(torch.ones(100, dtype=torch.float64))
    constant = torch.zeros(100, 1, dtype=torch.float64)
    calibration = BoxCalibration.fit(predicted, constant, torch.tensor([False]))
    assert calibration.interval == (Z_90,)
    assert calibration.scale == (1.0,)


def test_a_power_that_overstates_rare_errors_is_not_kept():
    """Errors grow with the squared deviation, except in the hundredth row, where members part."""
    generator = torch.Generator().manual_seed(0)
    deviation_N = (0.5 * torch.randn(3000, generator=generator, dtype=torch.float64)).exp()
    truth_N = deviation_N.square()
    deviation_N[::100], truth_N[::100] = 50.0, 5.0
    value_N = truth_N * torch.randn(3000, generator=generator, dtype=torch.float64)
    calibration = BoxCalibration.fit(_predicted(deviation_N), value_N[:, None], ONE)
    stated = calibration.apply(_predicted(deviation_N)).variance.mean().sqrt()
    powered = 50.0**2 * 0.01**0.5  # what the likelihood of all other rows favours
    assert calibration.power == (1.0,)
    assert stated < powered / 10
