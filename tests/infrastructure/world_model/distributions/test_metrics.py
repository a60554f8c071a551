import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Categorical, Normal, StudentT

from infrastructure.world_model.distributions.metrics import (
    Z_90,
    auroc,
    categorical_nll,
    clustered_standard_error,
    coverage,
    expected_calibration_error,
    student_nll,
)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40))
def test_auroc_is_the_chance_that_a_positive_scores_higher(rows):
    scores, positive = [row[0] for row in rows], [row[1] for row in rows]
    pairs = [(s > t) + 0.5 * (s == t) for s, p in rows for t, q in rows if p and not q]
    got = auroc(torch.tensor(scores, dtype=torch.float64), torch.tensor(positive))
    if pairs:
        assert got == pytest.approx(sum(pairs) / len(pairs))
    else:
        assert math.isnan(got)


def test_likelihoods_are_those_of_torch():
    mean, variance = torch.randn(7, 2).double(), torch.rand(7, 2).double() + 0.1
    value = torch.randn(7, 2).double()
    for tail in (0.0, 0.1, 0.3, 0.45):
        law = Normal(mean, variance.sqrt())
        if tail:
            law = StudentT(1 / tail, mean, (variance * (1 - 2 * tail)).sqrt())
            assert torch.allclose(law.variance, variance)
        nll = student_nll(mean, variance, torch.tensor(tail, dtype=torch.float64), value)
        assert torch.allclose(nll, -law.log_prob(value))
    probabilities = torch.rand(7, 3).double().softmax(1)
    label = torch.randint(0, 3, (7,))
    expected = -Categorical(probabilities).log_prob(label)
    assert torch.allclose(categorical_nll(probabilities, label), expected)


def test_calibration_error_of_right_and_wrong_confidence():
    probability = torch.full((1000,), 0.8, dtype=torch.float64)
    happened = torch.arange(1000) < 800
    assert expected_calibration_error(probability, happened) == pytest.approx(0.0, abs=1e-9)
    assert expected_calibration_error(probability, ~happened) == pytest.approx(0.6)


def test_coverage_counts_what_falls_within():
    mean, half_width = torch.zeros(100_000).double(), torch.full((100_000,), Z_90).double()
    value = torch.randn(100_000, generator=torch.Generator().manual_seed(0)).double()
    assert coverage(mean, half_width, value) == pytest.approx(0.9, abs=0.005)
    assert coverage(mean, half_width, 2 * value) < 0.65


def test_the_standard_error_counts_groups_not_rows():
    value = torch.randn(50, generator=torch.Generator().manual_seed(0)).double()
    alone = clustered_standard_error(value, [str(row) for row in range(50)])
    assert alone == pytest.approx(float(value.std() / 50**0.5))
    repeated = clustered_standard_error(
        value.repeat_interleave(10), [str(row) for row in range(50) for _ in range(10)]
    )
    assert repeated == pytest.approx(alone)
    assert clustered_standard_error(value, ["one"] * 50) == math.inf
