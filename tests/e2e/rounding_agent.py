"""A policy without a language model: it samples one of 16 actions, in rounds of its own data.

Its logits are as far apart as those of a trained model, so BF16 shifts its probabilities.

Legend: B sequences, S tokens (an action in one of 64 states each), F features, A actions.
"""

import time
from collections.abc import Iterator

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from infrastructure.agent_contract import (
    CONTRACT_VERSION,
    Evaluation,
    EvaluationReport,
    Publication,
    RunContext,
    Schedule,
)
from infrastructure.agent_contract.on_policy_job import LogProbFunctions, OnPolicyJob, Roles

ROWS, TOKENS, STATES, FEATURES, ACTIONS, ROUNDS = 16, 16, 64, 32, 16, 200
FINISH = "finish"  # a file in the agent's folder; without it every round takes half a second


class Policy(nn.Module):
    """One residual block: the trainer adds in FP32, the rollout in its half type."""

    def __init__(self) -> None:
        super().__init__()
        self.states = nn.Embedding(STATES, FEATURES)
        self.block = nn.Sequential(
            nn.Linear(FEATURES, 64), nn.SiLU(), nn.Linear(64, FEATURES), nn.SiLU()
        )
        self.head = nn.Linear(FEATURES, ACTIONS)
        with torch.no_grad():
            self.head.weight.mul_(5)

    def forward(self, state_BS: Tensor) -> Tensor:
        state_BSF = self.states(state_BS)
        logits_BSA: Tensor = self.head(state_BSF + self.block(state_BSF))
        return logits_BSA


class RoundingAgent:
    """Learns which action is right for each row."""

    name = "rounding"
    contract_version = CONTRACT_VERSION

    def schedule(self) -> Schedule:
        return Schedule.parse("every 1d")

    def settings_model(self) -> type[BaseModel] | None:
        return None

    def collect(self, context: RunContext) -> Iterator:
        return iter(())

    def build_job(self, context: RunContext, transitions) -> OnPolicyJob:
        torch.manual_seed(0)
        model = Policy()

        def batches(round_: int, roles: Roles):
            if not (context.agent_folder / FINISH).exists():
                time.sleep(0.5)
            generator = torch.Generator().manual_seed(round_)
            state_BS = torch.randint(STATES, (ROWS, TOKENS), generator=generator)
            log_probs_BSA = roles.rollout(state_BS).log_softmax(-1)
            flat_NA = log_probs_BSA.exp().flatten(0, 1)
            action_N1 = torch.multinomial(flat_NA, 1, generator=generator)
            batch = {"state_BS": state_BS, "action_BS": action_N1.reshape(ROWS, TOKENS)}
            yield {**batch, "recorded_BS": of_actions(log_probs_BSA, batch)}

        def evaluate(_forward) -> Evaluation:
            return Evaluation(metrics={"reward": 0.0}, primary="reward", higher_is_better=True)

        return OnPolicyJob(
            model=model,
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, fused=True),
            batches=batches,
            loss=lambda forward, batch: -log_probs(forward, batch).mean(),
            evaluate=evaluate,
            epochs=1,
            rounds_per_epoch=ROUNDS,
            log_probs=LogProbFunctions(recorded=recorded, policy=log_probs, rollout=log_probs),
        )

    def publish(self, context: RunContext, model, report: EvaluationReport) -> Publication:
        return Publication(published=False, reason="nothing to use it for", metrics={})


def recorded(batch) -> tuple[Tensor, Tensor]:
    recorded_BS = batch["recorded_BS"]
    return recorded_BS, torch.ones_like(recorded_BS, dtype=torch.bool)


def log_probs(forward, batch) -> Tensor:
    return of_actions(forward(batch["state_BS"]).log_softmax(-1), batch)


def of_actions(log_probs_BSA: Tensor, batch) -> Tensor:
    return log_probs_BSA.gather(-1, batch["action_BS"].unsqueeze(-1))[..., 0]
