import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from infrastructure.policy import Sampling

LOGITS = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
INF = float("-inf")


@pytest.mark.parametrize(
    ("sampling", "probs"),
    [
        (Sampling(), [0.5, 0.3, 0.15, 0.05]),
        (Sampling(top_k=2), [0.625, 0.375, 0, 0]),
        (Sampling(top_k=9), [0.5, 0.3, 0.15, 0.05]),
        (Sampling(top_k=1), [1, 0, 0, 0]),
        (Sampling(top_p=0.79), [0.625, 0.375, 0, 0]),
        (Sampling(top_p=0.81), [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        (Sampling(top_p=0.01), [1, 0, 0, 0]),
        (Sampling(temperature=0.5), [x**2 / 0.365 for x in (0.5, 0.3, 0.15, 0.05)]),
        # Of the first two, 0.625 and 0.375 of what top-k leaves, the first reaches 0.6.
        (Sampling(top_k=2, top_p=0.6), [1, 0, 0, 0]),
    ],
)
def test_the_distribution_by_hand(sampling: Sampling, probs: list[float]) -> None:
    shaped = sampling.shaped_logits(LOGITS)

    assert shaped.dtype == torch.float32
    torch.testing.assert_close(shaped.softmax(-1), torch.tensor([probs], dtype=torch.float32))


@given(
    st.integers(0, 1000),
    st.sampled_from([0.3, 1.0, 1.7]),
    st.sampled_from([None, 1, 5]),
    st.sampled_from([0.2, 0.9, 1.0]),
)
def test_the_distribution_is_the_one_of_transformers(
    seed: int, temperature: float, top_k: int | None, top_p: float
) -> None:
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(seed))
    theirs = LogitsProcessorList(
        [
            TemperatureLogitsWarper(temperature),
            TopKLogitsWarper(top_k or 20),
            TopPLogitsWarper(top_p),
        ]
    )(torch.zeros(3, 1, dtype=torch.long), logits.clone())

    ours = Sampling(temperature=temperature, top_k=top_k, top_p=top_p).shaped_logits(logits)

    torch.testing.assert_close(ours, theirs)


def test_a_token_that_was_drawn_stays_possible() -> None:
    shaped = Sampling(top_k=2).shaped_logits(LOGITS, torch.tensor([3]))

    probs = torch.tensor([[0.5, 0.3, 0, 0.05]]) / 0.85
    torch.testing.assert_close(shaped.softmax(-1), probs)


def test_ties_leave_exactly_k_tokens() -> None:
    shaped = Sampling(top_k=2).shaped_logits(torch.zeros(1, 5))

    assert (shaped > INF).sum() == 2


def test_half_logits_are_shaped_in_float32() -> None:
    logits = torch.randn(2, 50).bfloat16()

    shaped = Sampling(temperature=0.7).shaped_logits(logits)

    torch.testing.assert_close(shaped, logits.float() / 0.7, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": 0.0}, "top_k=1"),
        ({"temperature": 1e-40}, "temperature .* 0.01 .* got 1e-40"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 2.5}, "top_k .* got 2.5"),
        ({"top_k": True}, "top_k .* got True"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
    ],
)
def test_values_outside_of_their_range_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**values)  # type: ignore[arg-type]
