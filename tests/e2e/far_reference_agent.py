"""A policy whose frozen reference, stored in FP16, overflows: its states are far from 0.

The policy normalises them in float32; what its copies store in FP16 is infinite. It samples with
the policy itself, so that only the reference is to blame.
"""

import time

import torch
from rounding_agent import (
    ACTIONS,
    FEATURES,
    ROUNDS,
    ROWS,
    STATES,
    TOKENS,
    RoundingAgent,
    log_probs,
    of_actions,
    recorded,
)
from torch import Tensor, nn

from infrastructure.agent_contract import Evaluation, RunContext
from infrastructure.agent_contract.on_policy_job import LogProbFunctions, OnPolicyJob, Roles


class FarReferenceAgent(RoundingAgent):
    """Learns which action is right for each row, near its reference."""

    name = "rounding"

    def build_job(self, context: RunContext, transitions) -> OnPolicyJob:
        del transitions
        torch.manual_seed(0)
        states = nn.Embedding(STATES, FEATURES)
        with torch.no_grad():
            states.weight.mul_(1e5)
        model = nn.Sequential(states, nn.LayerNorm(FEATURES), nn.Linear(FEATURES, ACTIONS))

        def batches(round_: int, roles: Roles):
            time.sleep(0.02)
            generator = torch.Generator().manual_seed(round_)
            state_BS = torch.randint(STATES, (ROWS, TOKENS), generator=generator)
            log_probs_BSA = roles.policy(state_BS).log_softmax(-1)
            flat_NA = log_probs_BSA.exp().flatten(0, 1)
            action_N1 = torch.multinomial(flat_NA, 1, generator=generator)
            batch = {"state_BS": state_BS, "action_BS": action_N1.reshape(ROWS, TOKENS)}
            yield {
                **batch,
                "recorded_BS": of_actions(log_probs_BSA, batch),
                "reference_BS": log_probs(roles.reference, batch),
            }

        def loss(forward, batch) -> Tensor:
            of_policy_BS = log_probs(forward, batch)
            return (of_policy_BS - batch["reference_BS"]).square().mean() - of_policy_BS.mean()

        def evaluate(_forward) -> Evaluation:
            return Evaluation(metrics={"reward": 0.0}, primary="reward", higher_is_better=True)

        return OnPolicyJob(
            model=model,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
            batches=batches,
            loss=loss,
            evaluate=evaluate,
            epochs=10_000,
            rounds_per_epoch=ROUNDS,
            reference=True,
            log_probs=LogProbFunctions(recorded=recorded, policy=log_probs, rollout=log_probs),
        )
