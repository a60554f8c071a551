"""Values and rewards from the features of a language model, fitted without a training.

Legend: N rows, B sequences, T tokens, S = T - 1 predicted tokens, H features.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

_RIDGE = 1e-3


class ValueHead(nn.Module):
    """Predicts the return of a completion before each of its tokens, from the policy's features.

    Args:
        hidden_size: H.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.features = nn.Linear(hidden_size, hidden_size)
        self.activation = nn.Tanh()
        self.output = nn.Linear(hidden_size, 1)

    def forward(self, hidden_BTH: Tensor) -> Tensor:
        """Value of the state in which each predicted token is chosen, [B, S]."""
        features_BSH = self.activation(self.features(hidden_BTH[:, :-1]))
        return cast(Tensor, self.output(features_BSH)).squeeze(-1)

    @torch.no_grad()
    def fit(self, hidden_NH: Tensor, returns_N: Tensor) -> None:
        """Fit the last layer to *returns_N* by ridge regression; the first keeps its weights."""
        _fit(self.output, self.activation(self.features(hidden_NH)), returns_N)


class RewardModel(nn.Module):
    """Predicts the reward of a completion from a language model's features of its last token.

    Args:
        backbone: Causal language model of transformers.
        hidden_size: H.
    """

    def __init__(self, backbone: nn.Module, hidden_size: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.output = nn.Linear(hidden_size, 1)

    def features(self, **inputs: Tensor) -> Tensor:
        """Last hidden state of each sequence at its last token, [B, H]; arguments as `forward`."""
        hidden_BTH = self.backbone(
            **inputs, use_cache=False, output_hidden_states=True
        ).hidden_states[-1]
        mask_BT = inputs["attention_mask"]
        last_B = mask_BT.shape[1] - 1 - mask_BT.flip(1).argmax(1)
        rows_B = torch.arange(len(last_B), device=last_B.device)
        return cast(Tensor, hidden_BTH[rows_B, last_B])

    def forward(self, **inputs: Tensor) -> Tensor:
        """Reward of each sequence, [B].

        Args:
            **inputs: ``input_ids``, ``attention_mask`` (int64) and ``position_ids``, [B, T].
        """
        return cast(Tensor, self.output(self.features(**inputs))).squeeze(-1)

    @torch.no_grad()
    def fit(self, features_NH: Tensor, rewards_N: Tensor) -> None:
        """Fit the last layer to *rewards_N* by ridge regression."""
        _fit(self.output, features_NH, rewards_N)


def same_weights(model: nn.Module, other: nn.Module) -> bool:
    """Whether both have the same parameters and buffers, bit for bit."""
    first, second = model.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(
        torch.equal(value, second[name]) for name, value in first.items()
    )


def _fit(layer: nn.Linear, features_NH: Tensor, targets_N: Tensor) -> None:
    """Weights and bias of least squares with a penalty on the weights, solved in float64."""
    features_NH, targets_N = features_NH.double(), targets_N.double()
    mean_H, mean = features_NH.mean(0), targets_N.mean()
    centred_NH = features_NH - mean_H
    scale = centred_NH.square().mean().clamp(min=1e-12)
    penalty_HH = _RIDGE * len(features_NH) * scale * torch.eye(len(mean_H)).to(centred_NH)
    weights_H = torch.linalg.solve(
        centred_NH.T @ centred_NH + penalty_HH, centred_NH.T @ (targets_N - mean)
    )
    layer.weight.copy_(weights_H[None])
    layer.bias.copy_((mean - mean_H @ weights_H)[None])
