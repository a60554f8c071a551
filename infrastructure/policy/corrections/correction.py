"""Corrections for the mismatch of rollout and trainer: rules combined, with statistics.

B sequences, S predicted tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from infrastructure.policy.corrections.corrected import Corrected
from infrastructure.policy.corrections.rules import (
    BinaryKLMask,
    CatastrophicTokenVeto,
    Level,
    ProbabilityGapMask,
    RatioMask,
    Rule,
    TokenEvidence,
    TruncatedImportanceSampling,
    Verdict,
)
from infrastructure.policy.masked import (
    bounded_ratio,
    check_token_values,
    masked,
    masked_mean,
)


@dataclass(frozen=True, slots=True)
class Correction:
    """Combination of rules; usable with every loss. No rule: measures, changes nothing.

    The result goes into `LossInputs.correction`. Losses keep the denominators of the whole
    response: dropping a token takes its term away and does not enlarge the others.

    Attributes:
        rules: At most one that weights; a token is dropped if any rule drops it.
    """

    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        weighting = [type(rule).__name__ for rule in self.rules if rule.weights]
        if len(weighting) > 1:
            raise ValueError(
                f"{' and '.join(weighting)} both weight tokens, which would count the ratio twice; "
                "keep one, or use RatioMask(weighted=False)"
            )

    def __call__(
        self,
        log_probs_BS: Tensor,
        rollout_log_probs_BS: Tensor,
        mask_BS: Tensor,
        *,
        advantages_BS: Tensor | None = None,
    ) -> Corrected:
        """Return weights, kept tokens and statistics of a batch. Reads nothing from the device.

        Statistics, over valid tokens: ``ratio_{mean,min,max}`` (raw, per token),
        ``clipped_fraction`` (weights truncated), ``dropped_fraction``,
        ``dropped_sequence_fraction`` (no token left), ``weight_mean`` (after, dropped tokens count
        as 0), ``token_ess`` and ``sequence_ess``: the effective sample size ``(Σw)²/(n Σw²)`` of
        the weights after correction, and of the raw sequence ratios ``exp Σ(log π - log μ)``.

        Args:
            log_probs_BS: Of the trainer: those of the old policy, recomputed by the trainer. (The
                current policy's, for rules that replace the clipping, as DPPO does.)
            rollout_log_probs_BS: Recorded by the rollout.
            mask_BS: Valid tokens, bool.
            advantages_BS: For rules that use their sign.

        Raises:
            TokenValueError: Wrong shape, half precision, or a rule lacks advantages.
        """
        check_token_values(
            mask_BS, log_probs_BS=log_probs_BS, rollout_log_probs_BS=rollout_log_probs_BS
        )
        if advantages_BS is not None:
            check_token_values(mask_BS, advantages_BS=advantages_BS)
            advantages_BS = masked(advantages_BS.detach(), mask_BS)
        log_probs_BS = masked(log_probs_BS.detach(), mask_BS)
        rollout_log_probs_BS = masked(rollout_log_probs_BS.detach(), mask_BS)
        log_ratio_BS = log_probs_BS - rollout_log_probs_BS
        evidence = TokenEvidence(
            log_ratio_BS, log_probs_BS, rollout_log_probs_BS, mask_BS, advantages_BS
        )
        verdicts = [rule.judge(evidence) for rule in self.rules]

        kept_BS = mask_BS
        weights_BS = torch.ones_like(log_ratio_BS)
        for verdict in verdicts:
            kept_BS = kept_BS & ~verdict.dropped_BS
            if verdict.weights_BS is not None:
                weights_BS = verdict.weights_BS
        # A NaN must reach the loss: a rule that only compares would let it pass as in range.
        weights_BS = torch.where(log_ratio_BS.isnan(), log_ratio_BS, weights_BS)
        weights_BS = masked(weights_BS, kept_BS)
        stats = _statistics(evidence, weights_BS, kept_BS, verdicts)
        return Corrected(weights_BS=weights_BS, kept_BS=kept_BS, stats=stats)


def _statistics(
    evidence: TokenEvidence, weights_BS: Tensor, kept_BS: Tensor, verdicts: list[Verdict]
) -> dict[str, Tensor]:
    mask_BS = evidence.mask_BS
    ratio_BS = bounded_ratio(evidence.log_ratio_BS)
    clipped_BS = torch.zeros_like(mask_BS)
    for verdict in verdicts:
        if verdict.clipped_BS is not None:
            clipped_BS = clipped_BS | (verdict.clipped_BS & kept_BS)
    some_B = mask_BS.any(dim=1)
    emptied_B1 = (some_B & ~kept_BS.any(dim=1))[:, None]
    any_token = mask_BS.any()
    zero, ones_BS = torch.zeros_like(ratio_BS[0, 0]), torch.ones_like(ratio_BS)
    smallest = ratio_BS.masked_fill(~mask_BS, torch.inf).amin()
    largest = ratio_BS.masked_fill(~mask_BS, -torch.inf).amax()
    return {
        "ratio_mean": masked_mean(ratio_BS, mask_BS),
        "ratio_min": torch.where(any_token, smallest, zero),
        "ratio_max": torch.where(any_token, largest, zero),
        "clipped_fraction": masked_mean(clipped_BS * ones_BS, mask_BS),
        "dropped_fraction": masked_mean(~kept_BS * ones_BS, mask_BS),
        "dropped_sequence_fraction": masked_mean(emptied_B1 * ones_BS[:, :1], some_B[:, None]),
        "weight_mean": masked_mean(weights_BS, mask_BS),
        "token_ess": effective_sample_size(weights_BS.log(), mask_BS),
        "sequence_ess": effective_sample_size(evidence.log_ratio_BS.sum(dim=1), some_B),
    }


def effective_sample_size(log_weights: Tensor, mask: Tensor) -> Tensor:
    """Return ``(Σw)²/(n Σw²)``, between 1/n and 1; 0 where nothing has weight.

    Computed from log-weights, so that no weight overflows.

    Args:
        log_weights: Logarithms, any shape; ``-inf`` for weight 0.
        mask: Which ones count, bool.
    """
    log_weights = log_weights.masked_fill(~mask, -torch.inf).flatten()
    largest = log_weights.amax()
    weights = (log_weights - torch.where(largest.isinf(), 0.0, largest)).exp()
    size = weights.sum().square() / (mask.sum() * weights.square().sum()).clamp(min=1e-30)
    size = size.clamp(max=1.0)  # rounding exceeds it
    return torch.where(largest == -torch.inf, torch.zeros_like(size), size)


CORRECTIONS: Mapping[str, Correction] = MappingProxyType(
    {
        "none": Correction(),
        "token-tis": Correction((TruncatedImportanceSampling(high=2.0),)),
        "sequence-tis": Correction((TruncatedImportanceSampling(level=Level.SEQUENCE, high=2.0),)),
        "icepop": Correction((RatioMask(low=0.5, high=5.0, weighted=True),)),
        "sequence-mask": Correction(
            (RatioMask(level=Level.SEQUENCE, low=0.0, high=3.0, weighted=True),)
        ),
        "geometric-mask": Correction((RatioMask(level=Level.GEOMETRIC, low=0.999, high=1.002),)),
        "token-veto": Correction((CatastrophicTokenVeto(threshold=1e-4),)),
        "kpop": Correction((BinaryKLMask(threshold=2.0),)),
        "dppo": Correction((ProbabilityGapMask(threshold=0.2),)),
    }
)
"""Corrections by name, with the thresholds that their users ship."""
