"""A reward model that needs no head: how likely a language model finds a completion.

Legend: B sequences, T tokens, S = T - 1 predicted tokens, V vocabulary.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn


class LikelihoodReward(nn.Module):
    """Rewards a completion with the mean probability of its tokens.

    A language model that has learnt a task from right answers gives a right token a probability
    near 1 and a wrong one a probability near 0, so the mean is close to the share of right tokens,
    end of the completion included. It lies between 0 and 1 and distinguishes completions with
    equally many errors.

    Args:
        language_model: Causal language model of transformers that knows the task.
    """

    def __init__(self, language_model: nn.Module) -> None:
        super().__init__()
        self.language_model = language_model

    def forward(self, response_mask_BS: Tensor, **inputs: Tensor) -> Tensor:
        """Reward of each sequence, [B], float32.

        Args:
            response_mask_BS: Tokens of the completion, bool.
            **inputs: ``input_ids``, ``attention_mask`` (int64) and ``position_ids``, [B, T].
        """
        logits_BTV = cast(Tensor, self.language_model(**inputs, use_cache=False).logits)
        tokens_BS1 = inputs["input_ids"][:, 1:, None]
        probabilities_BSV = logits_BTV[:, :-1].softmax(-1, dtype=torch.float32)
        taken_BS = probabilities_BSV.gather(-1, tokens_BS1).squeeze(-1)
        return torch.where(response_mask_BS, taken_BS, 0).sum(1) / response_mask_BS.sum(1)
