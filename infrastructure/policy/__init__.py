"""Policies: causal language models, what they generate, and the log-probabilities of it.

`TokenBatch` is what moves between rollout, losses and measurements; `Sampling` says from which
distribution tokens are drawn; `token_log_probs` computes log-probabilities for every role.
"""

from infrastructure.policy.log_probs import (
    log_probs_and_hidden_states,
    log_probs_of_logits,
    token_log_probs,
)
from infrastructure.policy.sampling import Sampling
from infrastructure.policy.tokens import TokenBatch, TokenBatchError

__all__ = [
    "Sampling",
    "TokenBatch",
    "TokenBatchError",
    "log_probs_and_hidden_states",
    "log_probs_of_logits",
    "token_log_probs",
]
