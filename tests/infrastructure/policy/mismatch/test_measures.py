import math
from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from infrastructure.policy.mismatch import Mismatch, MismatchError, measure

LN2 = math.log(2)


def logs(probabilities: list[list[float]]) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def two_sequences() -> tuple[Tensor, Tensor, Tensor]:
    """delta is (-ln 2, ln 2) in the first sequence and (-ln 2) in the second."""
    mask_BS = torch.tensor([[True, True, False], [True, False, False]])
    pi_BS = logs([[1 / 4, 1 / 2, 1.0], [1 / 4, 1.0, 1.0]])
    mu_BS = logs([[1 / 2, 1 / 4, 0.0], [1 / 2, math.nan, 1e-30]])
    return pi_BS, mu_BS, mask_BS


def test_every_measure_has_the_value_derived_by_hand() -> None:
    found = measure(*two_sequences())
    assert (found.tokens, found.sequences) == (3, 2)
    expected = {
        "k1": LN2 / 3,
        "k2": LN2**2 / 2,
        "k3": LN2 / 3,  # (1/2 - 1 + ln 2 + 2 - 1 - ln 2 + 1/2 - 1 + ln 2) / 3
        "mean_difference": 1 / 4,
        "max_difference": 1 / 4,
        "pearson": -1.0,
        "chi2_token": 1 / 2,  # (1/4 + 4 + 1/4) / 3 - 1
        "chi2_sequence": -3 / 8,  # weights 1 and 1/2: (1 + 1/4) / 2 - 1
        "effective_sample_size": 9 / 10,  # (3/2)^2 / (2 * 5/4)
        "sequence_std": LN2 / math.sqrt(2),
        "slope": LN2,  # sums 0 and -ln 2 at lengths 2 and 1
    }
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected)


def test_a_long_sequence_counts_by_its_tokens() -> None:
    mask_BS = torch.tensor([[True] * 9, [True] + [False] * 8])
    pi_BS = torch.full((2, 9), -1.0)
    mu_BS = pi_BS - torch.tensor([[0.0], [1.0]])
    assert measure(pi_BS, mu_BS, mask_BS).k1 == pytest.approx(-1 / 10)


def test_equal_probabilities_differ_nowhere() -> None:
    pi_BS, _, mask_BS = two_sequences()
    found = measure(pi_BS, pi_BS, mask_BS)
    zero = {"k1", "k2", "k3", "mean_difference", "max_difference", "chi2_token", "chi2_sequence"}
    assert {getattr(found, name) for name in zero | {"slope", "sequence_std"}} == {0.0}
    assert found.effective_sample_size == pytest.approx(1.0)
    assert found.pearson == pytest.approx(1.0)


def test_rounding_of_one_part_in_a_million_is_resolved_from_float32() -> None:
    mu_BS = torch.full((4, 100), -1.0)
    pi_BS = mu_BS + 2.0**-20  # exact in float32
    found = measure(pi_BS, mu_BS, torch.ones(4, 100, dtype=torch.bool))
    assert found.k3 == pytest.approx(2.0**-41, rel=1e-5)
    assert found.k2 == pytest.approx(2.0**-41, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("ratio", [-50.0, 50.0])
def test_extreme_ratios_stay_numbers(dtype: torch.dtype, ratio: float) -> None:
    mu_BS = torch.full((2, 40), -60.0 if ratio > 0 else -1.0, dtype=dtype)
    pi_BS = mu_BS + ratio
    mask_BS = torch.ones(2, 40, dtype=torch.bool)
    mask_BS[1, 20:] = False
    found = measure(pi_BS, mu_BS, mask_BS)
    assert not any(math.isnan(v) for k, v in asdict(found).items() if k != "pearson")
    assert found.k1 == -ratio
    assert found.k3 == pytest.approx(math.expm1(ratio) - ratio)
    assert found.slope == pytest.approx(ratio)
    assert found.effective_sample_size == pytest.approx(1 / 2)  # one weight is all the weight
    assert found.chi2_sequence == (math.inf if ratio > 0 else pytest.approx(-1.0))


def test_a_token_that_the_trainer_excludes_makes_the_divergence_infinite() -> None:
    mu_BS = torch.tensor([[-1.0, -1.0], [-1.0, -1.0]])
    pi_BS = torch.tensor([[-1.0, -math.inf], [-math.inf, -1.0]])
    found = measure(pi_BS, mu_BS, torch.ones(2, 2, dtype=torch.bool))
    assert found.k1 == found.k2 == found.k3 == math.inf
    assert found.effective_sample_size == 0.0
    assert found.max_difference == pytest.approx(math.exp(-1))


def test_one_token_has_no_spread() -> None:
    found = measure(*(torch.tensor([[value]]) for value in (-1.0, -2.0)), torch.tensor([[True]]))
    assert found.effective_sample_size == pytest.approx(1.0)
    assert all(math.isnan(value) for value in (found.slope, found.sequence_std, found.pearson))


def test_an_empty_completion_is_no_sequence() -> None:
    pi_BS, mu_BS, mask_BS = two_sequences()
    more = torch.cat([mask_BS, torch.zeros(1, 3, dtype=torch.bool)])
    nothing = torch.full((1, 3), math.nan, dtype=torch.float64)
    found = measure(torch.cat([pi_BS, nothing]), torch.cat([mu_BS, nothing]), more)
    assert found == measure(pi_BS, mu_BS, mask_BS)


def test_it_takes_no_gradient_and_no_part_in_one() -> None:
    pi_BS, mu_BS, mask_BS = two_sequences()
    pi_BS.requires_grad_()
    assert isinstance(measure(pi_BS, mu_BS, mask_BS), Mismatch)
    assert pi_BS.grad is None


@pytest.mark.parametrize(
    ("pi", "mu", "valid", "named"),
    [
        ([[-1.0]], [[-1.0]], [[False]], "valid token"),
        ([[math.nan, -1.0]], [[-1.0, -1.0]], [[True, True]], "1 of 2 of the trainer's .* NaN"),
        ([[-1.0, -1.0]], [[math.nan, math.nan]], [[True, True]], "2 of 2 of the rollout's .* NaN"),
        ([[-1.0]], [[-math.inf]], [[True]], "0 for 1 of 1"),
    ],
)
def test_what_cannot_be_compared_is_named(
    pi: list[list[float]], mu: list[list[float]], valid: list[list[bool]], named: str
) -> None:
    with pytest.raises(MismatchError, match=named):
        measure(torch.tensor(pi), torch.tensor(mu), torch.tensor(valid))


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"\(1, 2\), \(1, 3\) and \(1, 2\)"):
        measure(torch.zeros(1, 2), torch.zeros(1, 3), torch.ones(1, 2, dtype=torch.bool))


@given(
    st.lists(
        st.lists(st.floats(-20, 0), min_size=1, max_size=6).flatmap(
            lambda row: st.tuples(
                st.just(row), st.lists(st.floats(-20, 0), min_size=len(row), max_size=len(row))
            )
        ),
        min_size=1,
        max_size=5,
    )
)
def test_padding_changes_nothing_and_bounds_hold(
    rows: list[tuple[list[float], list[float]]],
) -> None:
    def padded(which: int, width: int) -> Tensor:
        return torch.tensor(
            [[*row[which], *[7.0] * (width - len(row[which]))] for row in rows], dtype=torch.float64
        )

    def mask(width: int) -> Tensor:
        return torch.tensor([[at < len(row[0]) for at in range(width)] for row in rows])

    found = measure(padded(0, 6), padded(1, 6), mask(6))
    wider = measure(padded(0, 9), padded(1, 9), mask(9))
    assert asdict(wider) == pytest.approx(asdict(found), nan_ok=True)
    assert min(found.k2, found.k3) >= 0
    assert 0 <= found.mean_difference <= found.max_difference <= 1
    assert 1 / found.sequences <= found.effective_sample_size * (1 + 1e-9) <= 1 + 1e-8


def test_a_tiny_difference_is_not_lost_to_rounding() -> None:
    mu_BS = torch.full((2, 3), -1.0, dtype=torch.float64)
    delta = 1e-8
    found = measure(mu_BS + delta, mu_BS, torch.ones(2, 3, dtype=torch.bool))
    assert found.k3 == pytest.approx(delta**2 / 2, rel=1e-3, abs=0.0)


def test_a_correlation_is_at_most_one() -> None:
    """Without a bound, rounding exceeds it for some of these."""
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        log_probs_BS = torch.rand(1, 7, dtype=torch.float64, generator=generator).log()
        found = measure(log_probs_BS, log_probs_BS, torch.ones(1, 7, dtype=torch.bool))
        assert 1 - 1e-12 < found.pearson <= 1.0
