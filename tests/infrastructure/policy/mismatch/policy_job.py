"""A tiny language model that generates text and is rewarded for one token."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from infrastructure.agent_contract import Evaluation, Forward
from infrastructure.agent_contract.on_policy_job import OnPolicyJob, Roles
from infrastructure.agent_contract.training_job import Batch
from infrastructure.policy import Sampling, TokenBatch, token_log_probs
from infrastructure.policy.models import build_policy, small_config
from infrastructure.policy.rescoring import token_log_prob_functions
from infrastructure.policy.rollout import TransformersRollout
from infrastructure.policy.tokenizer import CharacterTokenizer
from infrastructure.training.precision.roles import RoleForward

TOKENIZER = CharacterTokenizer("0123456789abcdef")
PAD, STOP = TOKENIZER.pad_token_id, {TOKENIZER.eos_token_id}
SAMPLING = Sampling(temperature=0.9, top_k=8)
FUNCTIONS = token_log_prob_functions(SAMPLING, pad_token=PAD, stop_tokens=STOP)
ROWS, TOKENS, WANTED = 20, 8, 7


def a_model(seed: int = 0) -> torch.nn.Module:
    """A model with opinions: its logits are spread as those of a trained one."""
    config = small_config(TOKENIZER, width=32, layers=2, heads=2, context=64)
    model = build_policy(config, seed=seed)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)
    return model


def sampled(rollout: Forward, seed: int, rows: int = ROWS, tokens: int = TOKENS) -> TokenBatch:
    assert isinstance(rollout, RoleForward)
    prompts = [[3 + (row + at) % 16 for at in range(2 + row % 3)] for row in range(rows)]
    engine = TransformersRollout(rollout, pad_token=PAD, stop_tokens=STOP)
    return engine.generate(prompts, sampling=SAMPLING, max_new_tokens=tokens, seed=seed)


def _batches(round_: int, roles: Roles) -> Iterator[Batch]:
    if not isinstance(roles.rollout, RoleForward):  # the untrained model, before the training
        batch = TokenBatch.from_sequences(
            [[5, 6]] * ROWS, [[7, 8]] * ROWS, pad_token=PAD, log_probs=[[-1.0, -1.0]] * ROWS
        )
    else:
        batch = sampled(roles.rollout, seed=round_)
    yield batch.to_tensors()


def _loss(forward: Forward, batch: Batch) -> Tensor:
    tokens = TokenBatch.from_tensors(batch)
    log_probs_BS = token_log_probs(forward, tokens, SAMPLING)
    wanted_BS = (tokens.predicted_tokens_BS == WANTED).float() * tokens.response_mask_BS
    return -(log_probs_BS * (wanted_BS - wanted_BS.mean())).sum() / tokens.response_mask_BS.sum()


def a_job(epochs: int = 4, **changes: object) -> OnPolicyJob:
    job = {
        "model": a_model(),
        "optimizer": partial(torch.optim.AdamW, lr=1e-3, fused=True),
        "loss": _loss,
        "evaluate": lambda _: Evaluation(
            metrics={"reward": 0.0}, primary="reward", higher_is_better=True
        ),
        "epochs": epochs,
        "batches": _batches,
        "log_probs": FUNCTIONS,
    }
    return OnPolicyJob(**{**job, **changes})
