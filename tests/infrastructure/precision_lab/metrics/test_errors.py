import pytest
import torch

from infrastructure.precision_lab.metrics.errors import measure_error
from infrastructure.precision_lab.metrics.valid import MetricError


def test_the_family_by_hand() -> None:
    exact = torch.tensor([1.0, -2.0, 4.0, 0.5])
    found = torch.tensor([1.5, 2.0, 0.0, 0.5])
    error = measure_error(found, exact)
    # absolute 0.5, 4, 4, 0; relative 0.5, 2, 1, 0
    assert error.abs_err_mean == pytest.approx(8.5 / 4)
    assert error.abs_err_max == pytest.approx(4.0)
    assert error.abs_err_p99 == pytest.approx(4.0)
    assert error.rel_err_mean == pytest.approx(3.5 / 4)
    assert error.rel_err_max == pytest.approx(2.0)
    assert error.rel_err_p99 == pytest.approx(0.03 * 1 + 0.97 * 2)
    assert error.zero_rounding_rate == 0.25
    assert error.sign_flip_rate == 0.25


def test_masked_entries_do_not_count() -> None:
    exact, found = torch.tensor([1.0, 1.0]), torch.tensor([2.0, torch.nan])
    assert measure_error(found, exact, torch.tensor([True, False])).abs_err_max == 1.0
    with pytest.raises(MetricError, match="exact has the shape"):
        measure_error(found, exact[:1])


def test_signs_are_compared_without_a_product_that_may_underflow() -> None:
    tiny = torch.tensor([-1e-30], dtype=torch.float32)
    assert measure_error(tiny, -tiny).sign_flip_rate == 1.0


def test_a_number_below_the_range_of_fp16_becomes_zero() -> None:
    exact = torch.tensor([1e-8, 1.0])
    assert measure_error(exact.half(), exact).zero_rounding_rate == 0.5
    assert measure_error(torch.zeros(2), torch.zeros(2)).zero_rounding_rate == 0.0  # exact ones
