"""The FP32 weights that all cells of a seed begin with: made once, saved, identified by a hash.

A language model first learns the task from right answers: it is the reward model. The initial
policy is a copy that then learns from answers with errors. It knows the task and makes the errors
of its demonstrator, so PPO has something to gain within some dozen updates.

Legend: B sequences, T tokens, S = T - 1 predicted tokens, N valid tokens, H features.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from infrastructure.events.role_precision import FP32
from infrastructure.policy import Sampling, TokenBatch, token_log_probs
from infrastructure.policy.masked import masked_mean
from infrastructure.policy.models import (
    build_policy,
    load_policy,
    load_tokenizer,
    small_config,
    special_tokens,
)
from infrastructure.policy.rollout import TransformersRollout
from infrastructure.policy.tokenizer import CharacterTokenizer, Tokenizer
from infrastructure.precision_lab.errors import LabError
from infrastructure.precision_lab.heads import ValueHead
from infrastructure.precision_lab.ppo.likelihood_reward import LikelihoodReward
from infrastructure.precision_lab.ppo.settings import CellSettings
from infrastructure.precision_lab.ppo.task import (
    CHARACTERS,
    Problem,
    problems,
    score,
    with_errors,
)
from infrastructure.precision_lab.weights_hash import weights_sha256
from infrastructure.training.precision.roles import RoleForward
from infrastructure.training.tensor_files import read_tensors, write_tensors

_LEARNING_RATE = 6e-3  # from new weights
_WARM_UP_LEARNING_RATE = 2e-3  # so that the copy forgets none of the task
_REFERENCE_AT = 0.5  # of the warm-up: the reference is an earlier policy, not a copy
_CONTEXT = 64
_VALUE_SEQUENCES = 256

States = dict[str, dict[str, Tensor]]


@dataclass(frozen=True, kw_only=True, slots=True)
class CellModels:
    """The models of a cell, float32, on one device.

    Attributes:
        policy: Causal language model that is trained.
        reference: The policy at an earlier step of its warm-up.
        value: Value head, trained beside the policy.
        reward: Reward model, frozen: a language model that has learnt from right answers.
        tokenizer: Its ids are those of the policy.
        pad_token: Id at padding.
        stop_tokens: Ids that end a completion.
    """

    policy: nn.Module
    reference: nn.Module
    value: ValueHead
    reward: LikelihoodReward
    tokenizer: Tokenizer
    pad_token: int
    stop_tokens: list[int]

    @property
    def named(self) -> dict[str, nn.Module]:
        """The models by role."""
        return {
            "policy": self.policy,
            "reference": self.reference,
            "value": self.value,
            "reward": self.reward,
        }

    @property
    def sha256(self) -> str:
        """Hash of every weight and buffer: names, types, shapes and bytes."""
        return weights_sha256(self.named)

    def encode(self, problem: Problem) -> list[int]:
        """Ids of a prompt."""
        return self.tokenizer.encode(problem.prompt)

    def batch(self, given: list[Problem], completions: list[str]) -> TokenBatch:
        """Prompts with completions that end."""
        end = self.stop_tokens[0]
        answers = [
            [*self.tokenizer.encode(completion, add_special_tokens=False), end]
            for completion in completions
        ]
        return TokenBatch.from_sequences(
            [self.encode(problem) for problem in given], answers, pad_token=self.pad_token
        ).to(next(self.policy.parameters()).device)

    def scores(self, given: list[Problem], batch: TokenBatch) -> list[float]:
        """The task's score of each completion."""
        stop, decode = self.stop_tokens, self.tokenizer.decode
        texts = [
            decode(tokens[:-1] if tokens[-1] in stop else tokens) for tokens in batch.responses()
        ]
        return [score(problem, text) for problem, text in zip(given, texts, strict=True)]


def build_models(settings: CellSettings, seed: int) -> CellModels:
    """The models before any training; the same for the same *seed*.

    Raises:
        PolicyModelError: The folder of the base model holds none that can be a policy.
    """
    tokenizer: Tokenizer
    if settings.base_model is None:
        tokenizer = CharacterTokenizer(CHARACTERS)
        config = small_config(
            tokenizer, width=settings.width, layers=settings.layers, heads=2, context=_CONTEXT
        )
        config.initializer_range = 0.05  # the default of 0.02 is for models many times as wide
        policy = build_policy(config, seed=seed)
    else:
        policy = load_policy(settings.base_model)
        tokenizer = load_tokenizer(settings.base_model)
    special = special_tokens(policy, tokenizer)
    hidden_size = int(policy.config.get_text_config().hidden_size)  # type: ignore[union-attr, operator]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        value = ValueHead(hidden_size)
    models = CellModels(
        policy=policy,
        reference=copy.deepcopy(policy),
        value=value,
        reward=LikelihoodReward(copy.deepcopy(policy)),
        tokenizer=tokenizer,
        pad_token=special.pad,
        stop_tokens=sorted(special.stop),
    )
    for module in models.named.values():
        module.to(torch.device(settings.device))
    return models


def prepare(settings: CellSettings, seed: int) -> CellModels:
    """Train reward model and initial policy on demonstrations, and fit the value head; in FP32.

    Raises:
        PolicyModelError: See `build_models`.
    """
    models = build_models(settings, seed)
    random = Random(f"preparation {seed}")
    given = problems(random)

    def demonstrated(model: nn.Module, answer: Callable[[Problem], str]) -> Tensor:
        drawn = list(islice(given, settings.preparation_batch))
        batch = models.batch(drawn, [answer(problem) for problem in drawn])
        log_probs_BS = token_log_probs(model, batch, Sampling())  # type: ignore[arg-type]
        return -masked_mean(log_probs_BS, batch.response_mask_BS)

    expert = models.reward.language_model
    _fit(
        expert,
        lambda _: demonstrated(expert, lambda problem: problem.answer),
        settings.reward_model_steps,
        _LEARNING_RATE,
    )
    models.policy.load_state_dict(expert.state_dict())
    reference_at = int(_REFERENCE_AT * settings.warm_up_steps)

    def demonstrated_with_errors(step: int) -> Tensor:
        if step == reference_at:
            models.reference.load_state_dict(models.policy.state_dict())
        return demonstrated(
            models.policy,
            lambda problem: with_errors(problem, random, settings.demonstration_errors),
        )

    _fit(models.policy, demonstrated_with_errors, settings.warm_up_steps, _WARM_UP_LEARNING_RATE)
    _fit_value_head(models, list(islice(given, _VALUE_SEQUENCES)), settings, seed)
    return models


@torch.no_grad()
def _fit_value_head(
    models: CellModels, given: list[Problem], settings: CellSettings, seed: int
) -> None:
    """Fit the values to the rewards of the initial policy's own completions.

    A head that has not been fitted adds noise to the first advantages as large as the rewards.
    """
    engine = TransformersRollout(
        RoleForward(models.policy, torch.device(settings.device), FP32),
        pad_token=models.pad_token,
        stop_tokens=models.stop_tokens,
    )
    batch = engine.generate(
        [models.encode(problem) for problem in given],
        sampling=Sampling(),
        max_new_tokens=settings.max_new_tokens,
        seed=seed,
    )
    if settings.task_reward:
        rewards_B = torch.tensor(models.scores(given, batch), device=batch.tokens_BT.device)
    else:
        rewards_B = models.reward(**reward_inputs(batch))
    output = models.policy(**batch.model_inputs(), output_hidden_states=True, use_cache=False)
    mask_BS = batch.response_mask_BS
    hidden_NH = output.hidden_states[-1][:, :-1][mask_BS]
    models.value.fit(hidden_NH, rewards_B[:, None].expand(mask_BS.shape)[mask_BS])


def reward_inputs(batch: TokenBatch) -> dict[str, Tensor]:
    """Arguments of the reward model for *batch*."""
    return {**batch.model_inputs(), "response_mask_BS": batch.response_mask_BS}


def _fit(
    module: nn.Module, loss_of_step: Callable[[int], Tensor], steps: int, learning_rate: float
) -> None:
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=learning_rate, weight_decay=0.0, fused=True
    )
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * (1 - 0.9 * step / steps)
        optimizer.zero_grad()
        loss_of_step(step).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()


def save(path: Path, models: CellModels) -> str:
    """Write the weights to *path*, atomically; return their `CellModels.sha256`.

    Raises:
        OSError: The disk refuses.
    """
    digest = models.sha256
    states = {role: module.state_dict() for role, module in models.named.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, {"sha256": digest, "states": states})
    return digest


def load(path: Path, settings: CellSettings, seed: int) -> CellModels:
    """The models that `save` wrote for these settings; nothing is unpickled.

    Raises:
        LabError: The file is missing or damaged, or belongs to other settings or another seed.
        PolicyModelError: See `build_models`.
    """
    models = build_models(settings, seed)
    try:
        content: Mapping[str, Any] = read_tensors(path)
        for role, module in models.named.items():
            module.load_state_dict(content["states"][role])
        expected = content["sha256"]
    except MemoryError:
        raise
    except Exception as error:  # a damaged file raises anything
        detail = " ".join(str(error).split())[:200]
        raise LabError(
            f"{path}: not the initial weights of this sweep ({type(error).__name__}: {detail}); "
            "delete the file, and they are made again"
        ) from error
    if models.sha256 != expected:
        raise LabError(f"{path}: the weights are damaged; delete the file, and they are made again")
    return models
