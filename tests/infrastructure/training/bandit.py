"""A contextual bandit, learned on-policy: a small job that generates its own batches.

Legend: B rows, 4 features, A = 3 actions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from infrastructure.agent_contract import Evaluation
from infrastructure.agent_contract.on_policy_job import OnPolicyJob, Roles

ROWS, PER_ROUND = 16, 3


class Bandit:
    """Makes jobs, and keeps what their ``batches`` was called with.

    Attributes:
        seen: Of each generated round: its number, the rollout's and the reference's output for one
            row, and the dtypes of what their modules compute.
    """

    def __init__(self, **changes: Any) -> None:
        self.seen: list[tuple[int, Tensor, Tensor | None]] = []
        self.dtypes: dict[str, list[torch.dtype]] = {"rollout": [], "reference": []}
        torch.manual_seed(7)
        self.model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.SiLU(), nn.Linear(16, 3))
        self.job = OnPolicyJob(
            **{
                "model": self.model,
                "optimizer": lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True),
                "batches": self.batches,
                "loss": loss,
                "evaluate": evaluate,
                "epochs": 2,
                "rounds_per_epoch": 4,
                "warm_up_rounds": 1,
                "reference": True,
                **changes,
            }
        )

    def batches(self, round_: int, roles: Roles) -> Iterator[dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(100 + round_)
        for number in range(PER_ROUND):
            x = torch.randn(ROWS, 4, generator=generator)
            best = x[:, :3].argmax(1)
            if round_ < self.job.warm_up_rounds:
                yield {"x": x, "action": best}
                continue
            logits_BA = roles.rollout(x)
            action = torch.multinomial(logits_BA.softmax(-1), 1, generator=generator)[:, 0]
            taken = action.unsqueeze(-1)
            reference = None if roles.reference is None else roles.reference(x)
            if number == 0:
                self._record(round_, roles, x, reference)
            yield {
                "x": x,
                "action": action,
                "advantage": (action == best).float() - 1 / 3,
                "old_log_probs": roles.policy(x).log_softmax(-1).gather(1, taken)[:, 0],
                "rollout_log_probs": logits_BA.log_softmax(-1).gather(1, taken)[:, 0],
            }

    def _record(self, round_: int, roles: Roles, x: Tensor, reference: Tensor | None) -> None:
        self.seen.append((round_, roles.rollout(x), reference))
        for name, role in (("rollout", roles.rollout), ("reference", roles.reference)):
            if role is not None and hasattr(role, "module"):
                self.dtypes[name].append(next(role.module.parameters()).dtype)


def loss(forward: Any, batch: dict[str, Tensor]) -> Tensor:
    log_probs = forward(batch["x"]).log_softmax(-1).gather(1, batch["action"].unsqueeze(-1))[:, 0]
    if "advantage" not in batch:
        return -log_probs.mean()
    return -((log_probs - batch["old_log_probs"]).exp() * batch["advantage"]).mean()


def evaluate(forward: Any) -> Evaluation:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    right = (forward(x).argmax(1) == x[:, :3].argmax(1)).float().mean().item()
    return Evaluation(metrics={"reward": right}, primary="reward", higher_is_better=True)
