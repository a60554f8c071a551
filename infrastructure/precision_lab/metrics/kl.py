"""How far the trained policy is from its reference, as a computation in one type sees it.

B sequences, S predicted tokens, N valid tokens. The values per token are computed in the type of
the role ``kl``, each operation rounded to it. Means, shares and quantiles of them are float64: a
mean in BF16 would count 5000 tokens as 4992 and report its own rounding instead of the values'.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from infrastructure.events.precision_state import PrecisionName
from infrastructure.precision_lab.metrics.valid import mean_of, quantile_of, rounded, valid_values

LOG_RATIO_CLAMP = 10.0
NEAR_ZERO_LOG_RATIO = 1e-6
NEAR_ZERO_PENALTY = 1e-8


@dataclass(frozen=True, kw_only=True, slots=True)
class KlMetrics:
    """Divergence over the valid tokens of one batch; the names are those of dtype-rlhf.

    r = log_ratio = log pi(token) - log pi_ref(token) of the tokens that were taken; its penalty is
    ``exp(c) - 1 - c`` with c = r clamped to ±10. Tokens are drawn from pi, so mean(r) estimates
    KL(pi || pi_ref) without bias. The penalty does not: the unbiased k3 of Schulman has -r in place
    of r, and both agree only to second order in r. NaN in a valid token makes the means,
    quantiles and extremes NaN.

    Attributes:
        valid_token_count: N.
        kl_mc_mean: mean(r), nats per token; may be negative.
        kl_penalty_mean: mean(penalty), nats per token.
        kl_penalty_p99: 99 % quantile of the penalty, interpolated linearly.
        kl_penalty_max: Largest penalty.
        log_ratio_std: Standard deviation of r (N - 1); 0 for one token.
        log_ratio_abs_max: Largest `|r|`.
        log_ratio_near_zero_frac: Share of tokens with `|r|` < 1e-6.
        kl_penalty_near_zero_frac: Share of tokens with a penalty below 1e-8, also a negative one.
        log_ratio_clamped_frac: Share of tokens with `|r|` > 10.
    """

    valid_token_count: int
    kl_mc_mean: float
    kl_penalty_mean: float
    kl_penalty_p99: float
    kl_penalty_max: float
    log_ratio_std: float
    log_ratio_abs_max: float
    log_ratio_near_zero_frac: float
    kl_penalty_near_zero_frac: float
    log_ratio_clamped_frac: float


def log_ratio(log_probs: Tensor, reference_log_probs: Tensor, precision: PrecisionName) -> Tensor:
    """Round both log-probabilities to *precision* and subtract in it; result in its dtype."""
    return rounded(log_probs, precision) - rounded(reference_log_probs, precision)


def kl_penalty(log_ratio: Tensor) -> Tensor:
    """``exp(c) - 1 - c`` with c = *log_ratio* clamped to ±10, each operation in its dtype.

    The formula of dtype-rlhf as it stands, because its cancellation is what is measured: in BF16
    it returns 0, or a wrong multiple of 2^-8, for most `|log_ratio|` below 0.1. Pass float64 for
    the exact value; a training should use `infrastructure.policy.losses.kl.kl_estimate`.
    """
    bounded = log_ratio.clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP)
    return bounded.exp() - 1 - bounded


def measure_kl(
    log_probs_BS: Tensor,
    reference_log_probs_BS: Tensor,
    mask_BS: Tensor,
    *,
    precision: PrecisionName = "fp32",
) -> KlMetrics:
    """Measure the divergence that a computation in *precision* sees. Waits for the device.

    Args:
        log_probs_BS: Log-probabilities of the taken tokens under the policy, from a log-softmax of
            float32 logits: a later cast does not restore digits that a softmax in half lost.
        reference_log_probs_BS: Those of the frozen reference, which has other weights.
        mask_BS: Valid tokens, bool; other positions may hold anything.
        precision: Type of the role ``kl``.

    Raises:
        MetricError: Shapes differ, or no token is valid.
    """
    policy_N, reference_N = valid_values(
        mask_BS, log_probs_BS=log_probs_BS, reference_log_probs_BS=reference_log_probs_BS
    )
    ratio_N = log_ratio(policy_N, reference_N, precision)
    penalty_N = kl_penalty(ratio_N).double()
    ratio_N = ratio_N.double()
    return KlMetrics(
        valid_token_count=ratio_N.numel(),
        kl_mc_mean=mean_of(ratio_N),
        kl_penalty_mean=mean_of(penalty_N),
        kl_penalty_p99=quantile_of(penalty_N, 0.99),
        kl_penalty_max=penalty_N.max().item(),
        log_ratio_std=ratio_N.std().item() if ratio_N.numel() > 1 else 0.0,
        log_ratio_abs_max=ratio_N.abs().max().item(),
        log_ratio_near_zero_frac=mean_of(ratio_N.abs() < NEAR_ZERO_LOG_RATIO),
        kl_penalty_near_zero_frac=mean_of(penalty_N < NEAR_ZERO_PENALTY),
        log_ratio_clamped_frac=mean_of(ratio_N.abs() > LOG_RATIO_CLAMP),
    )


def exact_kl_penalty_mean(
    log_probs_BS: Tensor, reference_log_probs_BS: Tensor, mask_BS: Tensor
) -> float:
    """`KlMetrics.kl_penalty_mean` in float64, free of cancellation: ``expm1(c) - c``.

    What a rounded computation is compared with, to tell a policy that has not moved from a
    penalty that has lost its digits. Arguments and errors as for `measure_kl`.
    """
    policy_N, reference_N = valid_values(
        mask_BS, log_probs_BS=log_probs_BS, reference_log_probs_BS=reference_log_probs_BS
    )
    ratio_N = policy_N.double() - reference_N.double()
    bounded_N = ratio_N.clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP)
    return mean_of(torch.expm1(bounded_N) - bounded_N)
