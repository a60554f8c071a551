"""The job that teaches a policy a task: demonstrations first, then reward alone.

In a round of the warm-up, a policy that solves less than a fifth of the problems learns from
demonstrations. So each seed gets as many as it needs: for arithmetic, fixed numbers of steps left
one seed at a reward of 0.05, from which it learned nothing, and another one at 0.6.

Legend: B sequences, T tokens, S = T - 1 predicted tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, pairwise
from random import Random
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import Module

from agents.policy.objectives import (
    NETWORKS,
    add_network,
    advantages,
    policy_loss,
    reduction_of,
)
from agents.policy.settings import PolicySettings
from agents.policy.tasks import Problem, Task, reward
from infrastructure.agent_contract import Evaluation, Forward
from infrastructure.agent_contract.on_policy_job import OnPolicyJob, RoleModel, Roles
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events.role_precision import FP32
from infrastructure.policy import (
    Sampling,
    TokenBatch,
    log_probs_and_hidden_states,
    token_log_probs,
)
from infrastructure.policy.corrections import CORRECTIONS, Corrected
from infrastructure.policy.losses import LossInputs, kl_loss
from infrastructure.policy.losses.log_partition import prompt_mask
from infrastructure.policy.masked import masked_mean
from infrastructure.policy.models import build_policy, small_config
from infrastructure.policy.rescoring import token_log_prob_functions
from infrastructure.policy.rollout import TransformersRollout
from infrastructure.policy.tokenizer import CharacterTokenizer
from infrastructure.training.precision.roles import RoleForward

PRIMARY = "held_out_reward"
HELD_OUT = 256
_ENOUGH = 0.2  # share of the problems that a policy solves and then learns from its completions
_DEMONSTRATIONS = 128  # in a step
_TRIED = 128  # problems
_CORRECTION_STATS = ("dropped_fraction", "weight_mean", "sequence_ess")


@cache
def _held_out_problems(task: Task, count: int) -> tuple[Problem, ...]:
    return tuple(task.held_out_problems(count))  # may take most of a second


class HeldOutProblems(NamedTuple):
    """Problems that are never trained on, in two disjoint parts.

    An epoch that was chosen because it does well on some problems does worse on others, so those
    that choose the epoch must not decide about publication.

    Attributes:
        choosing: Those of each evaluation, which choose the best epoch.
        deciding: Those that decide whether its policy is published.
    """

    choosing: Sequence[Problem]
    deciding: Sequence[Problem]

    @classmethod
    def of(cls, task: Task) -> HeldOutProblems:
        """Two halves of what *task* holds out."""
        problems = _held_out_problems(task, task.held_out)
        half = len(problems) // 2
        return cls(problems[:half], problems[half:])


def new_policy(task: Task, seed: int) -> Module:
    """A language model of about 110,000 random weights for the characters of *task*."""
    config = small_config(CharacterTokenizer(task.characters), layers=2, context=32)
    config.initializer_range = 0.05  # the default of 0.02 is for models a hundred times as wide
    return build_policy(config, seed=seed)


def is_reinforced(tensors: Batch) -> bool:
    """Whether *tensors* hold completions with their advantages, and not demonstrations."""
    return "advantages" in tensors


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyLearner:
    """Makes the job of one run.

    Attributes:
        task: What is learned.
        settings: The operator's.
        seed: Seed of the run; with the round, it decides problems and completions.
        warm: Whether the weights need no warm-up.
    """

    task: Task
    settings: PolicySettings
    seed: int
    warm: bool

    def job(self, model: Module, evaluated: Sequence[Problem] | None = None) -> OnPolicyJob:
        """The job that trains *model*, whose tokens are those of the task.

        Gives *model* the network that the loss trains beside it; see `remove_networks`.

        Args:
            evaluated: Held-out problems of each evaluation; by default the first `HELD_OUT`.
        """
        settings = self.settings
        add_network(model, settings.loss, self.seed)
        learning_rate = settings.learning_rate or self.task.learning_rate
        problems = evaluated or _held_out_problems(self.task, HELD_OUT)
        warm_up = 0 if self.warm else self.task.warm_up_rounds
        epochs = -(-(warm_up + settings.rounds) // settings.rounds_per_epoch)
        constant = warm_up * settings.steps_per_round
        falling = epochs * settings.rounds_per_epoch * settings.steps_per_round - constant
        tokenizer = CharacterTokenizer(self.task.characters)

        def batches(round_: int, roles: Roles) -> Iterator[Batch]:
            if round_ < warm_up and self._solved(round_, roles) < _ENOUGH:
                return self._demonstrations(round_, roles.batches_per_step)
            return self._completions(round_, roles)

        return OnPolicyJob(
            model=model,
            optimizer=lambda parameters: torch.optim.AdamW(
                parameters,
                lr=learning_rate,
                betas=(0.9, 0.98),
                weight_decay=0.0,
                fused=True,
            ),
            scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: max(1 - 0.9 * max(step - constant, 0) / falling, 0.1)
            ),
            batches=batches,
            loss=self._loss,
            evaluate=lambda _forward: self._evaluate(model, problems),
            epochs=epochs,
            rounds_per_epoch=settings.rounds_per_epoch,
            warm_up_rounds=warm_up,
            sync_every_rounds=settings.sync_every_rounds,
            reference=settings.kl_coefficient > 0.0 or settings.loss == "flowrl",
            value=NETWORKS["ppo"] if settings.loss == "ppo" else None,
            log_probs=token_log_prob_functions(
                self._sampling,
                pad_token=tokenizer.pad_token_id,
                stop_tokens=[tokenizer.eos_token_id],
            ),
            round_metrics=self._round_metrics,
        )

    @property
    def _sampling(self) -> Sampling:
        return Sampling(temperature=self.settings.temperature)

    def _draw(self, round_: int, count: int) -> list[Problem]:
        random = Random(f"{self.seed}/{round_}")
        return list(islice(self.task.training_problems(random), count))

    def _solved(self, round_: int, roles: Roles) -> float:
        """Share of some training problems that the rollout solves before *round_*."""
        problems = self._draw(round_, _TRIED)
        batch = self._generate(roles.rollout, problems, self._sampling, seed=round_)
        return sum(self._rewards(problems, batch)) / len(problems)

    def _demonstrations(self, round_: int, batches_per_step: int) -> Iterator[Batch]:
        tokenizer = CharacterTokenizer(self.task.characters)
        problems = self._draw(round_, self.settings.steps_per_round * _DEMONSTRATIONS)
        batches = self.settings.steps_per_round * batches_per_step
        bounds = [len(problems) * number // batches for number in range(batches + 1)]
        for first, last in pairwise(bounds):
            part = problems[first:last]
            answers = [
                [
                    *tokenizer.encode(problem.answer, add_special_tokens=False),
                    tokenizer.eos_token_id,
                ]
                for problem in part
            ]
            prompts = [tokenizer.encode(problem.prompt) for problem in part]
            yield TokenBatch.from_sequences(
                prompts, answers, pad_token=tokenizer.pad_token_id
            ).to_tensors()

    def _completions(self, round_: int, roles: Roles) -> Iterator[Batch]:
        """Generate a round and compute what its steps need, once, before the weights change."""
        settings = self.settings
        group = settings.completions_per_prompt
        problems = [
            problem
            for problem in self._draw(round_, settings.prompts_per_round)
            for _ in range(group)
        ]
        seed = Random(f"{self.seed}/{round_}/completions").getrandbits(63)
        batch = self._generate(roles.rollout, problems, self._sampling, seed)
        rewards_B = torch.tensor(self._rewards(problems, batch)).to(batch.tokens_BT.device)
        groups_B = torch.arange(len(problems), device=rewards_B.device) // group
        tensors = self._prepared(batch, rewards_B, groups_B, roles)
        order = torch.randperm(len(problems), generator=torch.Generator().manual_seed(seed))
        batches = settings.steps_per_round * roles.batches_per_step
        for rows in order.tensor_split(min(batches, len(problems))):
            yield {name: tensor[rows.to(tensor.device)] for name, tensor in tensors.items()}

    def _prepared(
        self, batch: TokenBatch, rewards_B: Tensor, groups_B: Tensor, roles: Roles
    ) -> Batch:
        loss, mask_BS = self.settings.loss, batch.response_mask_BS
        old_BS, network = self._computed(roles.policy, batch, self._sampling)
        values_BS = network if loss == "ppo" else None
        targets = advantages(loss, rewards_B, groups_B, mask_BS, values_BS)
        corrected = self._corrected(batch, old_BS, targets["advantages"])
        tensors = {
            **batch.to_tensors(),
            **targets,
            "rewards_B": rewards_B,
            "old_log_probs_BS": old_BS,
            "weights_BS": corrected.weights_BS,
            "kept_BS": corrected.kept_BS,
        }
        if roles.reference is not None:
            reference_BS = token_log_probs(roles.reference, batch, self._sampling)
            tensors["reference_log_probs_BS"] = reference_BS
        return tensors

    def _computed(
        self, forward: Forward, batch: TokenBatch, sampling: Sampling
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities, [B, S], and the result of the loss's network for *batch*, if any."""
        network = NETWORKS.get(self.settings.loss)
        if network is None:
            return token_log_probs(forward, batch, sampling), None
        log_probs_BS, hidden_BTH = log_probs_and_hidden_states(forward, batch, sampling)
        arguments = [hidden_BTH]
        if self.settings.loss == "flowrl":
            arguments.append(prompt_mask(batch.attention_mask_BT, batch.response_mask_BS))
        return log_probs_BS, forward.method(network, *arguments)

    def _corrected(self, batch: TokenBatch, old_BS: Tensor, advantages: Tensor) -> Corrected:
        mask_BS = batch.response_mask_BS
        return CORRECTIONS[self.settings.correction](
            old_BS,
            cast("Tensor", batch.log_probs_BS),
            mask_BS,
            advantages_BS=advantages
            if advantages.ndim == 2
            else advantages[:, None].expand(mask_BS.shape),
        )

    def _round_metrics(self, batches: Sequence[Batch]) -> Mapping[str, float]:
        """What the correction leaves of a round; see `Correction`."""
        tensors = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
        corrected = self._corrected(
            TokenBatch.from_tensors(tensors), tensors["old_log_probs_BS"], tensors["advantages"]
        )
        return {f"correction_{name}": corrected.stats[name].item() for name in _CORRECTION_STATS}

    def _loss(self, forward: Forward, tensors: Batch) -> Tensor:
        """Negative log-likelihood of demonstrations; the loss of the settings for completions."""
        batch, settings = TokenBatch.from_tensors(tensors), self.settings
        if not is_reinforced(tensors):
            log_probs_BS, network = self._computed(forward, batch, Sampling())
            loss = -masked_mean(log_probs_BS, batch.response_mask_BS)
            # The network learns nothing here, but DDP expects a gradient of every parameter.
            return loss if network is None else loss + 0.0 * network.sum()
        log_probs_BS, network = self._computed(forward, batch, self._sampling)
        inputs = LossInputs(
            log_probs_BS=log_probs_BS,
            old_log_probs_BS=tensors["old_log_probs_BS"],
            advantages=tensors["advantages"],
            mask_BS=batch.response_mask_BS,
            reference_log_probs_BS=tensors.get("reference_log_probs_BS"),
            correction=Corrected(
                weights_BS=tensors["weights_BS"], kept_BS=tensors["kept_BS"], stats={}
            ),
        )
        loss = policy_loss(settings.loss, inputs, tensors, network, self._max_new_tokens)
        if settings.kl_coefficient:
            reduction = reduction_of(settings.loss, self._max_new_tokens)
            kl = kl_loss(inputs, reduction=reduction).loss
            loss = loss + settings.kl_coefficient * kl
        return loss

    def _evaluate(self, model: Module, problems: Sequence[Problem]) -> Evaluation:
        rewards = torch.tensor(self.rewards_of(model, problems))
        greedy = torch.tensor(self.rewards_of(model, problems, Sampling(top_k=1)))
        return Evaluation(
            metrics={
                PRIMARY: rewards.mean().item(),
                f"{PRIMARY}_standard_error": (rewards.std() / len(rewards) ** 0.5).item(),
                f"{PRIMARY}_of_greedy_decoding": greedy.mean().item(),
            },
            primary=PRIMARY,
            higher_is_better=True,
        )

    def rewards_of(
        self, model: Module, problems: Sequence[Problem], sampling: Sampling | None = None
    ) -> list[float]:
        """Reward of *model*, in FP32, for one completion of each problem.

        Args:
            model: Policy to test.
            problems: Problems to solve.
            sampling: None for that of the rollout; the same random numbers at every call.
        """
        device = next(model.parameters()).device
        forward = RoleForward(model, device, FP32)
        batch = self._generate(forward, problems, sampling or self._sampling, seed=0)
        return self._rewards(problems, batch)

    @property
    def _max_new_tokens(self) -> int:
        return self.task.longest_answer + 1  # and the end

    def _generate(
        self, forward: RoleModel, problems: Sequence[Problem], sampling: Sampling, seed: int
    ) -> TokenBatch:
        tokenizer = CharacterTokenizer(self.task.characters)
        engine = TransformersRollout(
            forward, pad_token=tokenizer.pad_token_id, stop_tokens=[tokenizer.eos_token_id]
        )
        return engine.generate(
            [tokenizer.encode(problem.prompt) for problem in problems],
            sampling=sampling,
            max_new_tokens=self._max_new_tokens,
            seed=seed,
        )

    def _rewards(self, problems: Sequence[Problem], batch: TokenBatch) -> list[float]:
        tokenizer = CharacterTokenizer(self.task.characters)
        rewards = []
        for problem, tokens in zip(problems, batch.responses(), strict=True):
            ended = tokens[-1] == tokenizer.eos_token_id
            text = tokenizer.decode(tokens[:-1]) if ended else None
            rewards.append(reward(problem, text))
        return rewards
