"""The log-probabilities of token batches, as an on-policy job hands them to the library."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from infrastructure.agent_contract.on_policy_job import LogProbFunctions, RoleModel
from infrastructure.agent_contract.training_job import Batch, Forward
from infrastructure.policy.log_probs import token_log_probs
from infrastructure.policy.rollout import TransformersRollout
from infrastructure.policy.sampling import Sampling
from infrastructure.policy.tokens import TokenBatch, TokenBatchError


def token_log_prob_functions(
    sampling: Sampling, *, pad_token: int, stop_tokens: Collection[int]
) -> LogProbFunctions:
    """The functions of a job whose batches hold a `TokenBatch`, as `TokenBatch.to_tensors` puts it.

    Args:
        sampling: Rule by which the rollout draws tokens.
        pad_token: Id at padding.
        stop_tokens: Ids that end a completion.

    Returns:
        Functions of a rollout by `TransformersRollout`. They raise `TokenBatchError` if a batch
        holds no tokens, or no recorded log-probabilities.
    """

    def recorded(batch: Batch) -> tuple[Tensor, Tensor]:
        tokens = TokenBatch.from_tensors(batch)
        if tokens.log_probs_BS is None:
            raise TokenBatchError(
                "log_probs_BS of the batch's TokenBatch is None: keep what the rollout returned "
                "when you make the job's batches, or set the job's log_probs to None"
            )
        return tokens.log_probs_BS, tokens.response_mask_BS

    def policy(forward: Forward, batch: Batch) -> Tensor:
        return token_log_probs(forward, TokenBatch.from_tensors(batch), sampling)

    def rollout(forward: RoleModel, batch: Batch) -> Tensor:
        engine = TransformersRollout(forward, pad_token=pad_token, stop_tokens=stop_tokens)
        return engine.rescore(TokenBatch.from_tensors(batch), sampling)

    return LogProbFunctions(recorded=recorded, policy=policy, rollout=rollout)
