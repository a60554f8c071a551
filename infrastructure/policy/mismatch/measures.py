"""Measures of how far a trainer's probabilities are from those that tokens were sampled with.

The rollout samples tokens from mu; the trainer computes pi for the same tokens and weights. In
exact arithmetic both are equal. Formulas: Schulman 2020, "Approximating KL divergence" (k1, k2,
k3); Kish 1965 (effective sample size); Qi et al. 2025, "Defeating the training-inference mismatch
via FP16" (sums by length). All are computed in float64 on the host.

Shapes: B sequences, S predicted tokens, N valid tokens of all sequences, R sequences with a token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


class MismatchError(ValueError):
    """Log-probabilities cannot be compared; says how many, whose, and what to check."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """Difference between pi (trainer) and mu (rollout) over the valid tokens of one batch.

    delta = log pi - log mu of a sampled token. Means are over tokens, so a long sequence counts
    more than a short one. Sequence measures use the sum of delta over a sequence's tokens. A value
    is infinite if the trainer gives a sampled token no probability at all.

    Attributes:
        tokens: Valid tokens, N.
        sequences: Sequences with at least one valid token, R.
        k1: mean(-delta), nats per token: unbiased estimate of KL(mu || pi); noisy, may be negative.
        k2: mean(delta^2) / 2, nats per token: biased, never negative.
        k3: mean(exp(delta) - 1 - delta), nats per token: unbiased, never negative.
        mean_difference: mean ``|pi - mu|`` of probabilities, 0 to 1.
        max_difference: max ``|pi - mu|`` of probabilities, 0 to 1.
        pearson: Pearson correlation of the probabilities pi and mu over the tokens; NaN if either
            is constant.
        chi2_token: mean(exp(2 delta)) - 1: estimate of chi-squared(pi || mu) per token.
        chi2_sequence: mean(exp(2 sum delta)) - 1 over sequences.
        effective_sample_size: (sum w)^2 / (R sum w^2), w = exp(sum delta): the share of the
            sequences, 1/R to 1, that importance weights leave; 0 if every weight is 0.
        sequence_std: Standard deviation of sum delta over sequences (R - 1), nats; NaN for one.
        slope: Least-squares slope, with intercept, of sum delta by the number of valid tokens, nats
            per token; NaN if all sequences have the same length.
    """

    tokens: int
    sequences: int
    k1: float
    k2: float
    k3: float
    mean_difference: float
    max_difference: float
    pearson: float
    chi2_token: float
    chi2_sequence: float
    effective_sample_size: float
    sequence_std: float
    slope: float


def measure(log_probs_BS: Tensor, rollout_log_probs_BS: Tensor, mask_BS: Tensor) -> Mismatch:
    """Measure the mismatch of one batch.

    Waits for the device: copies the three tensors to the host. No gradient flows.

    Args:
        log_probs_BS: Log-probabilities of the sampled tokens under the trainer, any float dtype.
        rollout_log_probs_BS: Log-probabilities that the rollout recorded.
        mask_BS: True for valid response tokens; other positions may hold anything.

    Raises:
        MismatchError: No token is valid; a valid log-probability is NaN; the rollout gave a token
            it sampled no probability.
        ValueError: The shapes differ.
    """
    if not log_probs_BS.shape == rollout_log_probs_BS.shape == mask_BS.shape:
        raise ValueError(
            "log-probabilities and mask must have one shape, got "
            f"{tuple(log_probs_BS.shape)}, {tuple(rollout_log_probs_BS.shape)} and "
            f"{tuple(mask_BS.shape)}"
        )
    with torch.no_grad():
        valid_BS = mask_BS.to("cpu", torch.bool)
        log_pi_BS = log_probs_BS.detach().to("cpu", torch.float64)
        log_mu_BS = rollout_log_probs_BS.detach().to("cpu", torch.float64)
        _check(log_pi_BS[valid_BS], log_mu_BS[valid_BS])
        return _measure(log_pi_BS, log_mu_BS, valid_BS)


def summary(log_pi_N: Tensor, log_mu_N: Tensor) -> tuple[float, float]:
    """k3 and the mean difference alone, of valid tokens on the host, float64."""
    delta_N = log_pi_N - log_mu_N
    k3 = (delta_N.expm1() - delta_N).mean().item()
    return k3, (log_pi_N.exp() - log_mu_N.exp()).abs().mean().item()


def _check(log_pi_N: Tensor, log_mu_N: Tensor) -> None:
    if not log_pi_N.numel():
        raise MismatchError("no valid token: every completion is empty or masked")
    for whose, log_probs_N in (("the trainer's", log_pi_N), ("the rollout's", log_mu_N)):
        if missing := int(log_probs_N.isnan().sum()):
            raise MismatchError(
                f"{missing} of {log_probs_N.numel()} of {whose} log-probabilities are NaN: "
                "check its logits"
            )
    if impossible := int((log_mu_N == -math.inf).sum()):
        raise MismatchError(
            f"the rollout recorded probability 0 for {impossible} of {log_mu_N.numel()} tokens it "
            "sampled: it must record the distribution it sampled from"
        )


def _measure(log_pi_BS: Tensor, log_mu_BS: Tensor, valid_BS: Tensor) -> Mismatch:
    delta_BS = torch.where(valid_BS, log_pi_BS - log_mu_BS, 0.0)
    length_B = valid_BS.sum(1)
    delta_N, sum_R = delta_BS[valid_BS], delta_BS.sum(1)[length_B > 0]
    pi_N, mu_N = log_pi_BS[valid_BS].exp(), log_mu_BS[valid_BS].exp()
    k3, mean_difference = summary(log_pi_BS[valid_BS], log_mu_BS[valid_BS])
    return Mismatch(
        tokens=delta_N.numel(),
        sequences=sum_R.numel(),
        k1=-delta_N.mean().item(),
        k2=delta_N.square().mean().item() / 2,
        k3=k3,
        mean_difference=mean_difference,
        max_difference=(pi_N - mu_N).abs().max().item(),
        pearson=_pearson(pi_N, mu_N),
        chi2_token=(2 * delta_N).expm1().mean().item(),
        chi2_sequence=(2 * sum_R).expm1().mean().item(),
        effective_sample_size=_effective_sample_size(sum_R),
        sequence_std=sum_R.std().item() if sum_R.numel() > 1 else math.nan,
        slope=_slope(length_B[length_B > 0].double(), sum_R),
    )


def _pearson(x_N: Tensor, y_N: Tensor) -> float:
    x_N, y_N = x_N - x_N.mean(), y_N - y_N.mean()
    size = x_N.norm() * y_N.norm()
    return (x_N @ y_N / size).clamp(-1, 1).item() if size > 0 else math.nan


def _effective_sample_size(sum_R: Tensor) -> float:
    """Computed from logarithms: the weights of long sequences exceed every float."""
    log_total = sum_R.logsumexp(0)
    if log_total == -math.inf:
        return 0.0
    log_squares = (2 * sum_R).logsumexp(0)
    return (2 * log_total - log_squares).exp().item() / sum_R.numel()


def _slope(length_R: Tensor, sum_R: Tensor) -> float:
    length_R = length_R - length_R.mean()
    spread = length_R @ length_R
    return (length_R @ sum_R / spread).item() if spread > 0 else math.nan
