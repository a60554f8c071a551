"""A policy that learns from what it does itself; `build_job` of an agent returns such a job."""

from __future__ import annotations

import torch
from torch import Tensor

from infrastructure.agent_contract import Evaluation, Forward
from infrastructure.agent_contract.on_policy_job import OnPolicyJob, Roles


def batches(round_: int, roles: Roles) -> list[dict[str, Tensor]]:
    """The batches of a round: demonstrations first, then what the policy itself did."""
    generator = torch.Generator().manual_seed(round_)  # with context.seed in it
    x = torch.randn(64, 4, generator=generator)
    best = x[:, :3].argmax(1)
    if round_ < 5:  # the warm-up: demonstrations
        return [{"x": x, "action": best, "advantage": torch.ones(64)}]
    chances = roles.rollout(x).softmax(-1)  # the library's copy
    action = torch.multinomial(chances, 1, generator=generator)[:, 0]
    return [{"x": x, "action": action, "advantage": (action == best).float() - 1 / 3}]


def loss(forward: Forward, batch: dict[str, Tensor]) -> Tensor:
    """The policy gradient."""
    log_probs = forward(batch["x"]).log_softmax(-1).gather(1, batch["action"][:, None])[:, 0]
    return -(log_probs * batch["advantage"]).mean()


def evaluate(forward: Forward) -> Evaluation:
    """The share of best actions."""
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(1))
    right = (forward(x).argmax(1) == x[:, :3].argmax(1)).float().mean().item()
    return Evaluation(metrics={"reward": right}, primary="reward", higher_is_better=True)


job = OnPolicyJob(
    model=torch.nn.Linear(4, 3),
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
    batches=batches,
    loss=loss,
    evaluate=evaluate,
    epochs=4,
    rounds_per_epoch=5,
    warm_up_rounds=5,
)
