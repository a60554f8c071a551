import math

import torch

from infrastructure.precision_lab.metrics.accumulation import (
    accumulated_error,
    measure_accumulated_error,
)


def test_errors_add_up_over_the_valid_tokens_of_each_sequence() -> None:
    mask = torch.tensor(
        [[False, True, True, False, True], [True, True, False, False, False], [False] * 5]
    )
    exact = torch.full((3, 5), -1.0)
    exact[0, 3] = math.nan  # a token that a tool inserted
    found = exact + torch.tensor(
        [[9.0, 0.5, 0.25, 9.0, -1.0], [0.5, 0.5, 9.0, 9.0, 9.0], [9.0] * 5]
    )
    error = accumulated_error(found, exact, mask)
    assert error.tolist() == [[0.5, 0.75, 0.25, 0.25, 0.25], [0.5, 1.0, 1.0, 1.0, 1.0], [0.0] * 5]
    measured = measure_accumulated_error(found, exact, mask)
    assert measured.accum_err_final == (0.25 + 1.0) / 2  # the empty row does not count
    assert measured.accum_err_at_64 is None


def test_positions_count_sequences_that_are_long_enough() -> None:
    mask = torch.ones(2, 300, dtype=torch.bool)
    mask[1, 100:] = False
    exact = torch.full((2, 300), -2.0)
    found = torch.stack([exact[0] + 2**-8, exact[1] - 2**-6])
    measured = measure_accumulated_error(found, exact, mask)
    assert measured.accum_err_at_64 == (64 * 2**-8 + 64 * 2**-6) / 2
    assert measured.accum_err_at_256 == 256 * 2**-8
    assert measured.accum_err_at_512 is None
    assert measured.accum_err_final == (300 * 2**-8 + 100 * 2**-6) / 2


def test_the_sum_of_float32_is_exact_enough() -> None:
    exact = torch.full((1, 4096), -0.1)
    measured = measure_accumulated_error(exact, exact.double(), torch.ones(1, 4096) > 0)
    assert measured.accum_err_final == 0.0
