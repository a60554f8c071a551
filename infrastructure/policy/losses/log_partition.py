"""FlowRL's estimate of the partition function of a prompt.

B sequences, T tokens, S = T - 1 predicted tokens, H features of the model's last hidden layer.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from infrastructure.policy.masked import TokenValueError


class LogPartition(nn.Module):
    """Network for ``log Z(x)`` of a prompt x.

    (Linear, GELU, LayerNorm, Dropout) twice, then Linear to 1, on the mean of the prompt's last
    hidden states: as in Xuekai-Zhu/FlowRL, whose slice leaves out the last prompt token. Gradients
    flow into the policy. Train it with the policy in one optimizer; do not copy it to the rollout.

    Args:
        hidden_size: H.
        layers: Linear layers in all.
        dropout: Probability of dropping a feature.
    """

    def __init__(self, hidden_size: int, *, layers: int = 3, dropout: float = 0.1) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for _ in range(layers - 1):
            blocks += [nn.Linear(hidden_size, hidden_size), nn.GELU(), nn.LayerNorm(hidden_size)]
            blocks.append(nn.Dropout(dropout))
        self.network = nn.Sequential(*blocks, nn.Linear(hidden_size, 1))

    def forward(self, hidden_BTH: Tensor, prompt_mask_BT: Tensor) -> Tensor:
        """Return ``log Z`` of each prompt, shape ``[B]``, in the dtype of the parameters.

        The mean over the prompt is computed in that dtype too, with autocast off: a sum over a
        long prompt in half precision drops tokens or overflows.

        Args:
            hidden_BTH: Last hidden states, of any floating dtype.
            prompt_mask_BT: From `prompt_mask`, bool. A row without a prompt token counts as zeros.
        """
        if prompt_mask_BT.dtype != torch.bool or prompt_mask_BT.shape != hidden_BTH.shape[:2]:
            raise TokenValueError(
                f"prompt_mask_BT must be bool of shape {tuple(hidden_BTH.shape[:2])}, got "
                f"{prompt_mask_BT.dtype} of shape {tuple(prompt_mask_BT.shape)}"
            )
        dtype = next(self.parameters()).dtype
        with torch.autocast(hidden_BTH.device.type, enabled=False):
            mask_BT1 = prompt_mask_BT[:, :, None]
            total_BH = torch.where(mask_BT1, hidden_BTH.to(dtype), 0.0).sum(dim=1)
            mean_BH = total_BH / mask_BT1.sum(dim=1).clamp(min=1)
            return cast(Tensor, self.network(mean_BH)).squeeze(1)


def prompt_mask(attention_mask_BT: Tensor, response_mask_BS: Tensor) -> Tensor:
    """Return which tokens belong to the prompt, the last one included, bool ``[B, T]``.

    Position s of *response_mask_BS* is the prediction of token s + 1, so the first generated token
    is one position later than the first True. The prompt ends before it; tokens inserted later
    (results of tools) do not belong to it. Without a generated token, all real tokens are prompt.
    """
    response_BT = torch.nn.functional.pad(response_mask_BS, (1, 0))
    return attention_mask_BT & (response_BT.cumsum(dim=1) == 0)
