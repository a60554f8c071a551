"""Scores of plans: returns in each member's imagination, and what their disagreement costs.

Shapes: H steps, M members, N plans.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from infrastructure.world_model.planning.dynamics import Dynamics
from infrastructure.world_model.planning.rollouts import Imagined, given_rewards
from infrastructure.world_model.planning.settings import PlanSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Scores of N plans.

    Attributes:
        mean, sd: Mean and standard deviation of the return over members and their starts, ``[N]``
            float64.
        score: `mean` minus the penalised `sd`, ``[N]`` float64; minus infinity where not finite.
    """

    mean: Tensor
    sd: Tensor
    score: Tensor

    @classmethod
    def of(cls, returns_MN: Tensor, penalty: float) -> Scores:
        """Score *returns_MN*, each member's return of each plan."""
        mean_N = returns_MN.mean(0)
        sd_N = (returns_MN - mean_N).square_().mean(0).sqrt_()
        score_N = (mean_N - penalty * sd_N).nan_to_num(-torch.inf, -torch.inf, -torch.inf)
        return cls(mean=mean_N, sd=sd_N, score=score_N)


def step_rewards(dynamics: Dynamics, imagined: Imagined, settings: PlanSettings) -> Tensor:
    """Rewards of each step, ``[H, M, N]``: by the author's function, or learned."""
    if settings.reward is None:
        return imagined.rewards
    return given_rewards(dynamics, imagined, settings.reward)


def discounted_sum(reward_HMN: Tensor, discount: float) -> Tensor:
    """Sum over the steps, ``[M, N]`` float64."""
    if discount == 1.0:
        return reward_HMN.sum(0, dtype=torch.float64)
    factor_H = discount ** torch.arange(len(reward_HMN), dtype=torch.float64)
    return torch.einsum("h,hmn->mn", factor_H, reward_HMN.double())
