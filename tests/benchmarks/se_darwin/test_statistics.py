import numpy as np
import pytest

from benchmarks.se_darwin.statistics import ModuleBootstrap, upper_bound_of_mean


def test_related_functions_count_as_one():
    """Sixty copies of six values carry no more information than the six."""
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 9.0]
    alone = ModuleBootstrap([f"m{i}" for i in range(6)], 4000, 0).mean(values)
    copied = ModuleBootstrap([f"m{i}" for i in range(6)] * 10, 4000, 0).mean(values * 10)
    apart = ModuleBootstrap([f"m{i}" for i in range(60)], 4000, 0).mean(values * 10)
    assert copied.figure == alone.figure == pytest.approx(4.0)
    assert (copied.low, copied.high) == pytest.approx((alone.low, alone.high))
    assert apart.high - apart.low < 0.5 * (copied.high - copied.low)


def test_intervals_have_their_nominal_coverage():
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        values = rng.normal(3.0, 1.0, 40)
        interval = ModuleBootstrap([f"m{i}" for i in range(40)], 400, trial).mean(list(values))
        hits += interval.low <= 3.0 <= interval.high
    assert 0.88 <= hits / 200 <= 0.99


def test_ratios_and_differences_are_paired():
    bootstrap = ModuleBootstrap([f"m{i}" for i in range(20)], 500, 0)
    base = list(np.arange(1.0, 21.0))
    double = [2 * value for value in base]
    ratio = bootstrap.ratio(double, base)
    assert (ratio.low, ratio.figure, ratio.high) == pytest.approx((2.0, 2.0, 2.0))
    assert bootstrap.difference(base, base).high == 0.0


def test_the_bound_on_a_mean_is_student_s():
    bound = upper_bound_of_mean([1.0, 2.0, 3.0, 4.0, 5.0])
    assert bound.figure == 3.0
    assert bound.high == pytest.approx(3.0 + 2.132 * np.std([1, 2, 3, 4, 5], ddof=1) / 5**0.5)
