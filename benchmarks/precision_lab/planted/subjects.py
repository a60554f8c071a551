"""Small models and experiments with a part that a fault can replace.

Legend: B sequences, S tokens, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.nn.functional import layer_norm, log_softmax

from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import Role
from infrastructure.precision_lab import ExperimentResult
from infrastructure.precision_lab.experiment import Region

LOSS_SCALE = 1024.0


class Attention(Module):
    """Causal attention with one head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Mix the tokens."""
        q_BSD, k_BSD, v_BSD = self.qkv(x_BSD).chunk(3, dim=-1)
        scores_BSS = self.masked(q_BSD @ k_BSD.transpose(-1, -2) / x_BSD.shape[-1] ** 0.5)
        mixed: Tensor = self.out(scores_BSS.softmax(-1) @ v_BSD)
        return mixed

    def masked(self, scores_BSS: Tensor) -> Tensor:
        """Scores without those of later tokens."""
        length = scores_BSS.shape[-1]
        later_SS = torch.ones(length, length, dtype=torch.bool).triu(1)
        return scores_BSS.masked_fill(later_SS, float("-inf"))


class Norm(Module):
    """Layer normalisation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return layer_norm(x_BSD, x_BSD.shape[-1:], self.weight)


class Block(Module):
    """A transformer block with normalisation before each part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1: Module = Norm(width)
        self.attention: Module = Attention(width)
        self.norm2: Module = Norm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Attend, then transform each token."""
        x_BSD = x_BSD + self.attention(self.norm1(x_BSD))
        changed_BSD: Tensor = x_BSD + self.mlp(self.norm2(x_BSD))
        return changed_BSD


class Positions(Module):
    """Learned positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(64, width)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Positions of the tokens, ``[S, D]``."""
        found: Tensor = self.table(torch.arange(tokens_BS.shape[1]))
        return found


class LanguageModel(Module):
    """A causal language model; returns logits ``[B, S, V]`` and hidden states ``[B, S, D]``."""

    def __init__(self, width: int, depth: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens: Module = nn.Embedding(vocabulary, width)
        self.positions: Module = Positions(width)
        self.depth, self.width = depth, width
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm: Module = Norm(width)
        self.head = nn.Linear(width, vocabulary)

    def block(self, number: int) -> Block:
        """The block *number*, counted from 0."""
        return cast(Block, self.blocks[number])

    def forward(self, tokens_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and hidden states."""
        x_BSD = self.tokens(tokens_BS) + self.positions(tokens_BS)
        for block in self.blocks:
            x_BSD = block(x_BSD)
        x_BSD = self.norm(x_BSD)
        logits_BSV: Tensor = self.head(x_BSD)
        return logits_BSV, x_BSD


class ValueHead(Module):
    """A value for each token, ``[B, S]``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.last = nn.Linear(width, 1)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Values from hidden states."""
        value_BS1: Tensor = self.last(torch.tanh(self.hidden(x_BSD)))
        return value_BS1[..., 0]


class Dynamics(Module):
    """A world model: the change of an observation ``[B, S, D]`` after a history of them."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.encoder: Module = nn.Linear(width, 2 * width)
        self.summary: Module = Mean()
        self.layers = nn.ModuleList(
            nn.Sequential(Norm(2 * width), nn.Linear(2 * width, 2 * width), nn.SiLU())
            for _ in range(depth)
        )
        self.decoder: Module = nn.Linear(2 * width, width)
        self.scale: Module = nn.Identity()

    def forward(self, observations_BSD: Tensor) -> Tensor:
        """Change of the observation, ``[B, D]``."""
        x_BD = self.summary(self.encoder(observations_BSD))
        for layer in self.layers:
            x_BD = x_BD + layer(x_BD)
        change_BD: Tensor = self.scale(self.decoder(x_BD))
        return change_BD


class Mean(Module):
    """Mean over the history."""

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Summarise the history, ``[B, D]``."""
        return x_BSD.mean(1)


def exact_log_probs(logits_BSV: Tensor, tokens_BS: Tensor) -> Tensor:
    """Log-probability of each next token."""
    log_probs_BSV = log_softmax(logits_BSV[:, :-1], dim=-1)
    return log_probs_BSV.gather(-1, tokens_BS[:, 1:, None])[..., 0]


def k3(log_probs_BS: Tensor, reference_BS: Tensor) -> Tensor:
    """KL penalty of each token."""
    ratio_BS = reference_BS - log_probs_BS
    return ratio_BS.exp() - 1 - ratio_BS


def centred(rewards_B: Tensor, values_BS: Tensor) -> Tensor:
    """Advantage of each token: reward less value, relative to the mean."""
    rewards_B1 = (rewards_B - rewards_B.mean())[:, None]
    return rewards_B1 - 0.1 * (values_BS - values_BS.mean())


def policy_gradient(log_probs_BS: Tensor, advantages_BS: Tensor) -> Tensor:
    """Loss of REINFORCE."""
    return -(log_probs_BS * advantages_BS).mean()


@dataclass(frozen=True, kw_only=True)
class PolicyPart:
    """A policy's update on one batch; each function may be replaced by one with a fault.

    Attributes:
        policy: The policy.
        reference: The policy before its last updates.
        value: Its values.
        batches: ``tokens_BS`` and ``rewards_B``.
        log_probs: Log-probabilities from logits; runs in the role of its model.
        kl: Penalty from the log-probabilities of policy and reference.
        advantage: Advantages from rewards and values.
        loss: Loss from log-probabilities and advantages; runs in the role of the policy.
        keep_fp32: Nothing.
    """

    policy: LanguageModel
    reference: LanguageModel
    value: ValueHead
    batches: Sequence[Batch]
    log_probs: Callable[[Tensor, Tensor], Tensor] = exact_log_probs
    kl: Callable[[Tensor, Tensor], Tensor] = k3
    advantage: Callable[[Tensor, Tensor], Tensor] = centred
    loss: Callable[[Tensor, Tensor], Tensor] = policy_gradient
    keep_fp32: Sequence[str] = ()

    @property
    def rewards_B(self) -> Tensor:
        """Reward of each sequence."""
        rewards_B: Tensor = self.batches[0]["rewards_B"]
        return rewards_B

    @property
    def models(self) -> Mapping[Role, Module]:
        """Models by role."""
        return {
            Role.POLICY: self.policy,
            Role.REFERENCE: self.reference,
            Role.VALUE: self.value,
        }

    def run(self, region: Region) -> ExperimentResult:
        """See `Experiment.run`."""
        (batch,) = self.batches
        tokens_BS, rewards_B = batch["tokens_BS"], batch["rewards_B"]
        with region(Role.POLICY):
            logits_BSV, hidden_BSD = self.policy(tokens_BS)
            log_probs_BS = self.log_probs(logits_BSV, tokens_BS)
        with torch.no_grad(), region(Role.REFERENCE):
            logits_BSV, _ = self.reference(tokens_BS)
            reference_BS = self.log_probs(logits_BSV, tokens_BS)
        with region(Role.VALUE):
            values_BS = self.value(hidden_BSD.detach())
        with region(Role.KL):
            kl_BS = self.kl(log_probs_BS, reference_BS)
        with region(Role.ADVANTAGE):
            advantages_BS = self.advantage(rewards_B, values_BS.detach()[:, :-1])
        with region(Role.POLICY):
            loss = self.loss(log_probs_BS, advantages_BS)
        loss = loss.float() + 0.05 * kl_BS.float().mean()
        regression = (values_BS.float() - rewards_B[:, None]).square().mean()
        loss = loss + 0.5 * regression / rewards_B.square().mean()
        quantities = {
            "log_probs": log_probs_BS,
            "values": values_BS,
            "kl": kl_BS,
            "advantages": advantages_BS,
            "loss": loss,
        }
        return _outcome(quantities, loss, (self.policy, self.value))


@dataclass(frozen=True, kw_only=True)
class WorldModelPart:
    """The loss of a world model on one batch.

    Attributes:
        model: The world model.
        batches: ``observations_BSD`` and ``targets_BD``.
        keep_fp32: Nothing.
    """

    model: Dynamics
    batches: Sequence[Batch]
    keep_fp32: Sequence[str] = ()

    @property
    def models(self) -> Mapping[Role, Module]:
        """Models by role."""
        return {Role.WORLD_MODEL: self.model}

    def run(self, region: Region) -> ExperimentResult:
        """See `Experiment.run`."""
        (batch,) = self.batches
        with region(Role.WORLD_MODEL):
            changes_BD = self.model(batch["observations_BSD"])
        targets_BD = batch["targets_BD"]
        error_BD = (changes_BD.float() - targets_BD) / targets_BD.square().mean().sqrt()
        loss = error_BD.square().mean()
        return _outcome({"changes": changes_BD, "loss": loss}, loss, (self.model,))


def _outcome(
    quantities: Mapping[str, Tensor], loss: Tensor, modules: Sequence[Module]
) -> ExperimentResult:
    parameters = {
        f"gradient:{number}.{name}": parameter
        for number, module in enumerate(modules)
        for name, parameter in module.named_parameters()
    }
    gradients = torch.autograd.grad(
        loss * LOSS_SCALE, tuple(parameters.values()), allow_unused=True
    )
    found = {name: value.detach().float() for name, value in quantities.items()}
    for name, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            found[name] = gradient / LOSS_SCALE
    return ExperimentResult(quantities={name: value.flatten() for name, value in found.items()})


def policy_part(random: Random) -> PolicyPart:
    """A healthy policy, its reference and value head, with random sizes and weights."""
    torch.manual_seed(random.getrandbits(32))
    width = random.choice([16, 24])
    depth, vocabulary = random.choice([1, 2]), random.choice([32, 64])
    policy = LanguageModel(width, depth, vocabulary)
    reference = LanguageModel(width, depth, vocabulary)
    reference.load_state_dict(policy.state_dict())
    with torch.no_grad():
        for parameter in policy.parameters():  # what the training has done since
            parameter.add_(0.02 * torch.randn_like(parameter))
    tokens_BS = torch.randint(0, vocabulary, (random.choice([3, 4, 6]), random.choice([12, 20])))
    batch = {"tokens_BS": tokens_BS, "rewards_B": torch.randn(len(tokens_BS))}
    value = ValueHead(width)
    for model in (policy, reference, value):
        model.eval()
    return PolicyPart(policy=policy, reference=reference, value=value, batches=[batch])


def world_model_part(random: Random, *, history: int | None = None) -> WorldModelPart:
    """A healthy world model with random sizes and weights."""
    torch.manual_seed(random.getrandbits(32))
    width, depth = random.choice([4, 8, 12]), random.choice([1, 2, 3])
    model = Dynamics(width, depth)
    model.eval()
    shape = (random.choice([16, 32]), history or random.choice([4, 8]), width)
    batch = {"observations_BSD": torch.randn(shape), "targets_BD": torch.randn(shape[0], width)}
    return WorldModelPart(model=model, batches=[batch])
