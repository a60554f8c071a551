"""The rule by which tokens are drawn, and the distribution it really draws from.

Legend: X any leading dimensions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LOWEST_TEMPERATURE = 0.01
"""Below it, rounding decides what is drawn, and logits may overflow. vLLM raises lower values to
it, so that its log-probabilities would be those of another temperature."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Temperature, then top-k, then top-p, as in transformers and vLLM.

    Attributes:
        temperature: Divisor of the logits, at least `LOWEST_TEMPERATURE`.
        top_k: Only the k most probable tokens are drawn; None for all. 1 is greedy decoding.
        top_p: Only the most probable tokens are drawn, as few as reach this total probability
            (Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration").

    Raises:
        ValueError: A value is outside of its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not LOWEST_TEMPERATURE <= self.temperature < float("inf"):
            raise ValueError(
                f"temperature must be at least {LOWEST_TEMPERATURE} and finite, got "
                f"{self.temperature}: for greedy decoding use top_k=1"
            )
        is_integer = isinstance(self.top_k, int) and not isinstance(self.top_k, bool)
        if self.top_k is not None and (not is_integer or self.top_k < 1):
            raise ValueError(f"top_k must be an integer from 1, or None for all, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")

    @property
    def truncates(self) -> bool:
        """Whether some tokens are never drawn."""
        return self.top_k is not None or self.top_p < 1

    def shaped_logits(self, logits_XV: Tensor, taken_X: Tensor | None = None) -> Tensor:
        """Logits of the distribution that tokens are drawn from, [X, V] float32.

        Tokens that are never drawn have -inf. The log-probability that a rollout must record is
        of this distribution: with that of the untruncated one, importance ratios are biased by
        the probability that was cut off.

        Args:
            logits_XV: The model's logits, any float dtype.
            taken_X: Tokens that were drawn, int64; they are kept in any case. The trainer's
                rounding may cut off a token at the edge that the rollout has drawn, and a ratio
                of 0 would be an artefact of the edge.
        """
        logits_XV = logits_XV.float() / self.temperature
        if not self.truncates:
            return logits_XV
        kept_XV = self._kept(logits_XV.detach())
        if taken_X is not None:
            kept_XV = kept_XV.scatter(-1, taken_X.unsqueeze(-1), True)
        return logits_XV.masked_fill(~kept_XV, float("-inf"))

    def _kept(self, logits_XV: Tensor) -> Tensor:
        size = logits_XV.shape[-1]
        sorted_XV, tokens_XV = logits_XV.topk(min(self.top_k or size, size), dim=-1)
        probs_XV = sorted_XV.softmax(-1)
        before_XV = probs_XV.cumsum(-1) - probs_XV  # of the more probable ones; 0 at the first
        kept_XV = before_XV < self.top_p
        return torch.zeros_like(logits_XV, dtype=torch.bool).scatter(-1, tokens_XV, kept_XV)
