"""Rules that weight or drop tokens by the mismatch of rollout and trainer.

B sequences, S predicted tokens. π is the trainer's probability of a token, μ the rollout's, both
of the distribution that was truly sampled from (same temperature, top-k and top-p). Losses never
differentiate through a rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from infrastructure.policy.masked import (
    LOG_RATIO_BOUND,
    TokenValueError,
    bounded_ratio,
    masked_mean,
)

_CERTAIN = -1e-6
"""Largest log-probability that `BinaryKLMask` uses: 1 - p stays above 1e-6."""


class Level(StrEnum):
    """From log-ratios per token to the log-ratio that a rule looks at.

    TOKEN: each token's own. SEQUENCE: their sum, the importance ratio of the whole sequence, which
    spreads with the length: a mean of -0.007 over 80 tokens is a ratio of 0.57. GEOMETRIC: their
    mean, 0.993 for the same tokens; thresholds of one are useless for the other.
    """

    TOKEN = "token"  # noqa: S105 (a level, not a password)
    SEQUENCE = "sequence"
    GEOMETRIC = "geometric"

    def log_ratio(self, log_ratio_BS: Tensor, mask_BS: Tensor) -> Tensor:
        """Return the log-ratio at this level for each token, ``[B, S]``."""
        if self is Level.TOKEN:
            return log_ratio_BS
        if self is Level.SEQUENCE:
            return log_ratio_BS.sum(dim=1, keepdim=True).expand_as(log_ratio_BS)
        return masked_mean(log_ratio_BS, mask_BS, dim=1)[:, None].expand_as(log_ratio_BS)


class TokenEvidence(NamedTuple):
    """What a rule decides from. All values are detached; 0 at masked positions.

    Attributes:
        log_ratio_BS: log π - log μ.
        log_probs_BS: log π.
        rollout_log_probs_BS: log μ.
        mask_BS: Valid tokens, bool.
        advantages_BS: Advantages, for a rule that uses their sign.
    """

    log_ratio_BS: Tensor
    log_probs_BS: Tensor
    rollout_log_probs_BS: Tensor
    mask_BS: Tensor
    advantages_BS: Tensor | None


class Verdict(NamedTuple):
    """Decision of one rule.

    Attributes:
        dropped_BS: Tokens to leave out, bool.
        weights_BS: Weights, from rules that weight; None from those that only drop.
        clipped_BS: Tokens whose weight was truncated, bool.
    """

    dropped_BS: Tensor
    weights_BS: Tensor | None = None
    clipped_BS: Tensor | None = None


class Rule(Protocol):
    """One way to treat tokens that rollout and trainer disagree about."""

    @property
    def weights(self) -> bool:
        """Whether the rule weights tokens (a correction has at most one rule that does)."""
        ...

    def judge(self, evidence: TokenEvidence) -> Verdict:
        """Decide about each token."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TruncatedImportanceSampling:
    """Weight each token by ``clamp(ratio, low, high)``.

    Per token: Yao et al., fengyao.notion.site/off-policy-rl; slime and OAT truncate at 2, verl
    recommends 1.5 to 5, OpenRLHF clamps to [0.5, 5]. Per sequence: unbiased before truncation; verl
    recommends 2 to 10.

    Attributes:
        level: What ratio.
        low: Smallest weight.
        high: Largest weight.
    """

    level: Level = Level.TOKEN
    low: float = 0.0
    high: float = 2.0

    def __post_init__(self) -> None:
        _check_bounds(self.low, self.high)

    @property
    def weights(self) -> bool:
        """True: the rule weights tokens."""
        return True

    def judge(self, evidence: TokenEvidence) -> Verdict:
        """Truncate the ratios; drop nothing."""
        ratio_BS = bounded_ratio(self.level.log_ratio(evidence.log_ratio_BS, evidence.mask_BS))
        clipped_BS = (ratio_BS < self.low) | (ratio_BS > self.high)
        return Verdict(
            torch.zeros_like(evidence.mask_BS), ratio_BS.clamp(self.low, self.high), clipped_BS
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RatioMask:
    """Drop tokens (or sequences) whose ratio is outside ``[low, high]``.

    With TOKEN and *weighted*, this is IcePop (arXiv:2510.18855; [0.5, 5] in OpenRLHF and AReaL; in
    slime [0, 2] unless set). With SEQUENCE and *weighted*, TRL's default: above 3. With GEOMETRIC,
    Liu and Li (richardli.xyz/rl-collapse) and DeepSeek-V3.2 (arXiv:2512.02556): 0.999 to 1.002 in
    verl and NeMo-RL, 0.9999 to 1.0001 in slime.

    Attributes:
        level: What ratio.
        low: Smallest ratio that is kept.
        high: Largest ratio that is kept.
        weighted: Weight kept tokens by their ratio.
    """

    level: Level = Level.TOKEN
    low: float = 0.5
    high: float = 5.0
    weighted: bool = False

    def __post_init__(self) -> None:
        _check_bounds(self.low, self.high)

    @property
    def weights(self) -> bool:
        """Whether kept tokens are weighted."""
        return self.weighted

    def judge(self, evidence: TokenEvidence) -> Verdict:
        """Drop what is out of range."""
        log_ratio_BS = self.level.log_ratio(evidence.log_ratio_BS, evidence.mask_BS)
        low = math.log(self.low) if self.low > 0 else -math.inf
        dropped_BS = (log_ratio_BS < low) | (log_ratio_BS > math.log(self.high))
        return Verdict(dropped_BS, bounded_ratio(log_ratio_BS) if self.weighted else None)


@dataclass(frozen=True, kw_only=True, slots=True)
class _DroppingRule:
    """A rule that drops tokens by a threshold and weights none."""

    threshold: float

    def __post_init__(self) -> None:
        if not 0 < self.threshold < math.inf:
            raise ValueError(f"threshold must be positive, got {self.threshold}")

    @property
    def weights(self) -> bool:
        """False: the rule only drops."""
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class CatastrophicTokenVeto(_DroppingRule):
    """Drop a sequence if the ratio of any of its tokens is below *threshold* (slime: 1e-4)."""

    threshold: float = 1e-4

    def judge(self, evidence: TokenEvidence) -> Verdict:
        """Drop the sequences with such a token."""
        veto_BS = evidence.log_ratio_BS < math.log(self.threshold)
        return Verdict(veto_BS.any(dim=1, keepdim=True).expand_as(veto_BS))


@dataclass(frozen=True, kw_only=True, slots=True)
class BinaryKLMask(_DroppingRule):
    """KPop: drop tokens where ``max(D(π, μ), D(μ, π))`` exceeds *threshold*.

    ``D(p, q) = p log(p/q) + (1 - p) log((1 - p)/(1 - q))``, the divergence of "this token or
    another": ringtech.notion.site/kpop. AReaL's default is 2; the authors' own is reported as 0.1
    (prime-rl#3283). Unlike a ratio it is lenient where both probabilities are small.

    Evaluated from log-probabilities: ``1 - p`` in float32 is 0 for a certain token, which makes
    the textbook formula NaN.
    """

    threshold: float = 2.0

    def judge(self, evidence: TokenEvidence) -> Verdict:
        """Drop the tokens beyond the threshold."""
        log_p_BS = evidence.log_probs_BS.clamp(max=_CERTAIN)
        log_q_BS = evidence.rollout_log_probs_BS.clamp(max=_CERTAIN)
        log_ratio_BS = (log_p_BS - log_q_BS).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
        p_BS, q_BS = log_p_BS.exp(), log_q_BS.exp()
        other_p_BS, other_q_BS = -log_p_BS.expm1(), -log_q_BS.expm1()
        other_log_ratio_BS = other_p_BS.log() - other_q_BS.log()
        forward_BS = p_BS * log_ratio_BS + other_p_BS * other_log_ratio_BS
        backward_BS = -q_BS * log_ratio_BS - other_q_BS * other_log_ratio_BS
        return Verdict(torch.maximum(forward_BS, backward_BS) > self.threshold)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbabilityGapMask(_DroppingRule):
    """Drop tokens where ``|π - μ|`` exceeds *threshold*: prime-rl's default 0.2.

    DPPO (arXiv:2602.04879, the binary total-variation form) drops only tokens that moved in the
    direction of their advantage: *one_sided*. For that, `log_probs_BS` of the correction are those
    of the policy in training, so that it replaces the clipping; prime-rl's "ipo" is two-sided.

    Attributes:
        threshold: Largest difference of probabilities that is kept.
        one_sided: Only drop where a step would enlarge the difference; needs advantages.
    """

    threshold: float = 0.2
    one_sided: bool = False

    def judge(self, evidence: TokenEvidence) -> Verdict:
        """Drop the tokens beyond the threshold."""
        gap_BS = evidence.log_probs_BS.exp() - evidence.rollout_log_probs_BS.exp()
        if self.one_sided:
            if evidence.advantages_BS is None:
                raise TokenValueError(
                    "a one-sided ProbabilityGapMask needs advantages: pass them to the correction"
                )
            gap_BS = gap_BS * evidence.advantages_BS.sign()
            return Verdict(gap_BS > self.threshold)
        return Verdict(gap_BS.abs() > self.threshold)


_LARGEST_LOG_RATIO = 5 * LOG_RATIO_BOUND
"""Keeps ``p log(p/q)`` finite where a probability is 0."""


def _check_bounds(low: float, high: float) -> None:
    if not (0 <= low <= 1 <= high < math.inf):
        raise ValueError(
            f"bounds of a ratio need 0 <= low <= 1 <= high, got low={low}, high={high}"
        )
