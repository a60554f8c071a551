"""Log-probabilities of a batch's tokens: one function for trainer, reference and old policy.

Legend: B sequences, T tokens, S = T - 1 predicted tokens, V vocabulary, H features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from infrastructure.policy.sampling import Sampling
from infrastructure.policy.tokens import TokenBatch

if TYPE_CHECKING:
    from infrastructure.agent_contract import Forward


def token_log_probs(forward: Forward, batch: TokenBatch, sampling: Sampling) -> Tensor:
    """Log-probability of each token of the completions, [B, S] float32, 0 elsewhere.

    One forward pass over the whole sequences, without a cache. Does not read the device.

    Args:
        forward: Causal language model of transformers, as the trainer or a role passes it; its
            logits are float32 unless the role's results are half.
        batch: Sequences on the model's device.
        sampling: Rule by which the tokens were drawn.
    """
    output = forward(**batch.model_inputs(), use_cache=False)
    return log_probs_of_logits(output.logits, batch, sampling)


def log_probs_and_hidden_states(
    forward: Forward, batch: TokenBatch, sampling: Sampling
) -> tuple[Tensor, Tensor]:
    """As `token_log_probs`; with the last hidden states, [B, T, H], for a network beside the model.

    Such a network, of values or of FlowRL's Z, is then run by ``forward.method``.
    """
    output = forward(**batch.model_inputs(), use_cache=False, output_hidden_states=True)
    return log_probs_of_logits(output.logits, batch, sampling), output.hidden_states[-1]


def log_probs_of_logits(logits_BTV: Tensor, batch: TokenBatch, sampling: Sampling) -> Tensor:
    """As `token_log_probs`, from logits of a forward pass that serves other purposes too.

    Args:
        logits_BTV: The model's logits at each token of *batch*. Half ones are cast to float32
            before the softmax, which would round more than they did.

    Raises:
        ValueError: They have another shape than the batch's tokens.
    """
    if logits_BTV.ndim != 3 or logits_BTV.shape[:2] != batch.tokens_BT.shape:
        raise ValueError(
            f"the logits must have the shape [B, T, V] with B, T = {list(batch.tokens_BT.shape)}, "
            f"got {list(logits_BTV.shape)}"
        )
    tokens_BS = batch.predicted_tokens_BS
    shaped_BSV = sampling.shaped_logits(logits_BTV[:, :-1], tokens_BS)
    log_probs_BS = shaped_BSV.log_softmax(-1).gather(-1, tokens_BS.unsqueeze(-1)).squeeze(-1)
    return torch.where(batch.response_mask_BS, log_probs_BS, 0.0)
