"""H2: does a reward model in BF16 return a discretised signal?

One change: the type of the role ``reward``. The reward model is the frozen policy with a linear
head on the features of the last token, fitted in FP32 by least squares to the completion's mean
log-probability. Advantages are those of groups: reward minus the group's mean,
divided by its standard deviation.

Shapes: B sequences, T tokens, H features.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import Module

from benchmarks.policy.subjects import CPU
from benchmarks.precision_lab.hypotheses.material import Material, features_of
from benchmarks.precision_lab.hypotheses.verdicts import Claim
from infrastructure.events.role_precision import RolePrecision
from infrastructure.policy import TokenBatch
from infrastructure.policy.losses.advantages import grpo_advantages
from infrastructure.policy.masked import masked_mean
from infrastructure.precision_lab.metrics import measure_error, measure_reward_resolution
from infrastructure.precision_lab.metrics.resolution import lost_distinctions, order_kept
from infrastructure.training.precision.keep_fp32 import keep_in_fp32
from infrastructure.training.precision.roles import RoleForward

WAYS = {
    "bf16 reward": ("bf16/bf16/bf16", False),
    "only the result in bf16": ("fp32/fp32/bf16", False),
    "all but the head in bf16": ("bf16/bf16/fp32", True),
}
"""Types of the role, and whether its head stays in FP32."""

CLAIMS = (
    Claim(
        hypothesis="H2",
        text="a BF16 reward model gives equal rewards to more than 1 % of the pairs that differ",
        figure="bf16 reward: share of pairs made equal",
        confirmed_above=0.01,
        refuted_below=0.001,
        would_decide="more completions: pairs grow with their square",
    ),
    Claim(
        hypothesis="H2",
        text="the discretisation is what costs: it makes at least half of the advantages' error",
        figure="share of the advantages' squared error that rounding the result makes",
        confirmed_above=0.5,
        refuted_below=0.5,
        would_decide="more seeds",
        necessary=False,
    ),
    Claim(
        hypothesis="H2",
        text="it changes the advantages of a group by more than a tenth of their size",
        figure="bf16 reward: relative error of advantages",
        confirmed_above=0.1,
        refuted_below=0.1,
        would_decide="more completions of each prompt, or more seeds",
        necessary=False,
    ),
)
_RIDGE = 1e-3


class RewardModel(nn.Module):
    """A language model with a linear head on the features of each completion's last token.

    Args:
        body: Language model of transformers; not copied.
        hidden_size: H.
    """

    def __init__(self, body: Module, hidden_size: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(hidden_size, 1)

    def forward(self, batch: TokenBatch) -> Tensor:
        """Reward of each completion, [B]."""
        features_BTH = features_of(self.body, batch)
        rewards_B1: Tensor = self.head(last_features(features_BTH, batch))
        return rewards_B1[:, 0]


def last_features(features_BTH: Tensor, batch: TokenBatch) -> Tensor:
    """Features of the last token of each completion, [B, H]."""
    columns = torch.arange(1, batch.tokens_BT.shape[1])
    last_B = torch.where(batch.response_mask_BS, columns, 0).amax(1)
    return features_BTH[torch.arange(len(batch)), last_B]


def measure_quantization(material: Material) -> dict[str, float]:
    """Figures of one seed, by name, for each of `WAYS`."""
    batch = material.completions
    model = fitted_reward_model(material)
    groups_B = torch.arange(len(batch)) // material.group
    with torch.no_grad():
        exact_B: Tensor = model.head(last_features(material.features_BTH, batch))[:, 0]
    exact_advantages_B = grpo_advantages(exact_B, groups_B)
    resolution = measure_reward_resolution(exact_B)
    figures = {
        "fp32 reward: mean": exact_B.mean().item(),
        "fp32 reward: standard deviation": exact_B.std().item(),
        "fp32 reward: reward_resolution_median": resolution.reward_resolution_median,
    }
    squared_errors = {}
    for way, (types, fp32_head) in WAYS.items():
        found_B = exact_B.bfloat16()
        if types != "fp32/fp32/bf16":
            found_B = rewards_in(model, batch, types, fp32_head=fp32_head)
        advantages_B = grpo_advantages(found_B.float(), groups_B)
        error = (advantages_B - exact_advantages_B).double().square().sum()
        size = exact_advantages_B.double().square().sum()
        squared_errors[way] = error.item()
        resolution = measure_reward_resolution(found_B)
        figures |= {
            f"{way}: share of pairs made equal": _tied(found_B, exact_B),
            f"{way}: share of pairs in their order": order_kept(found_B, exact_B),
            f"{way}: reward_resolution_median": resolution.reward_resolution_median,
            f"{way}: mean |error| / standard deviation": measure_error(
                found_B.float(), exact_B
            ).abs_err_mean
            / exact_B.std().item(),
            f"{way}: relative error of advantages": (error / size).sqrt().item(),
        }
    figures["bf16 cast: share of pairs made equal"] = lost_distinctions(exact_B, "bf16").tied_frac
    whole, result = squared_errors["bf16 reward"], squared_errors["only the result in bf16"]
    figures["share of the advantages' squared error that rounding the result makes"] = (
        result / whole
    )
    return figures


def _tied(found_B: Tensor, exact_B: Tensor) -> float:
    """Share of the pairs with distinct exact rewards that have equal ones."""
    pairs_BB = exact_B[:, None] != exact_B[None, :]
    return (found_B[:, None] == found_B[None, :])[pairs_BB].double().mean().item()


def rewards_in(model: RewardModel, batch: TokenBatch, types: str, *, fp32_head: bool) -> Tensor:
    """Rewards [B] by *model* in ``store/compute/out``, in the type ``out``."""
    if fp32_head:
        model = copy.deepcopy(model)
        keep_in_fp32(model, ["head"], CPU)
    rewards_B: Tensor = RoleForward(model, CPU, RolePrecision.parse(types))(batch)
    return rewards_B


def fitted_reward_model(material: Material) -> RewardModel:
    """The reward model of a seed, float32, fitted by least squares to its completions."""
    batch = material.completions
    hidden_size = int(material.model.config.hidden_size)  # type: ignore[union-attr, arg-type]
    model = RewardModel(material.model, hidden_size)
    target_B = masked_mean(material.log_probs_BS, batch.response_mask_BS, dim=1).double()
    with torch.no_grad():
        hidden_BH = last_features(material.features_BTH, batch).double()
        center_H, mean = hidden_BH.mean(0), target_B.mean()
        deviation_BH = hidden_BH - center_H
        gram_HH = deviation_BH.T @ deviation_BH
        ridge = _RIDGE * gram_HH.diagonal().mean()
        identity_HH = torch.eye(hidden_size, dtype=torch.float64)
        weights_H = torch.linalg.solve(
            gram_HH + ridge * identity_HH, deviation_BH.T @ (target_B - mean)
        )
        model.head.weight.copy_(weights_H[None])
        model.head.bias.fill_((mean - center_H @ weights_H).item())
    return model
