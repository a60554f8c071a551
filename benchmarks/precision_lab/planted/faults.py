"""Faults of half precision as they are met in practice, planted into healthy models by a seed.

`REPORTED` are those of the benchmark. `TUNING` are others, on which the tolerance of the search was
chosen. Each function gets the generator of the seed and the half type, and puts the fault into a
random layer with a random strength.

The places of a fault are those whose code computes it. Where the code rounds between two kinds of
operations, such as a sum and the division after it, both are places of the fault.

Legend: B sequences, S tokens, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import Module

from benchmarks.precision_lab.planted.subjects import (
    Attention,
    policy_part,
    world_model_part,
)
from infrastructure.events import Role
from infrastructure.events.role_precision import HalfName, RolePrecision
from infrastructure.precision_lab import Experiment, Operation, Place
from infrastructure.precision_lab.experiment import in_fp32
from infrastructure.precision_lab.numerics import Numerics

ALL, INSIDE, AUTOCAST = "{0}/{0}/{0}", "{0}/{0}/fp32", "fp32/{0}/fp32"
COMPUTE, REDUCTION, STORAGE = Operation.COMPUTE, Operation.REDUCTION, Operation.STORAGE


@dataclass(frozen=True, kw_only=True)
class Planted:
    """An experiment with one fault, or none.

    Attributes:
        name: What is wrong.
        half: Half type in which it is wrong.
        experiment: Contains the fault.
        precisions: Types of each role.
        places: Places of the fault; empty for a healthy experiment.
    """

    name: str
    half: HalfName
    experiment: Experiment
    precisions: Mapping[Role, RolePrecision]
    places: frozenset[Place] = frozenset()


Parts = tuple[Experiment, Mapping[Role, str], set[Place]]
Family = Callable[[Random, HalfName], Parts]


def types(half: HalfName, roles: Mapping[Role, str]) -> Mapping[Role, RolePrecision]:
    """Types of each role from patterns such as `ALL`."""
    return {role: RolePrecision.parse(text.format(half)) for role, text in roles.items()}


def places_of(role: Role, module: str, *operations: Operation) -> set[Place]:
    """Places of one module."""
    return {Place(role, module, operation) for operation in operations}


def _models(random: Random, *patterns: str) -> dict[Role, str]:
    """A way to compute for the three models of a policy."""
    pattern = random.choice(patterns)
    return dict.fromkeys((Role.POLICY, Role.REFERENCE, Role.VALUE), pattern)


class _Own(Module):
    """Runs a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x_BSD: Tensor) -> Tensor:
        return self.function(x_BSD)


# ------------------------------------------------------------------------------- reported


def lm_head(random: Random, half: HalfName) -> Parts:
    """Logits over a large vocabulary have drifted by a common offset, which softmax ignores."""
    part = policy_part(random)
    vocabulary, width = random.choice([2048, 4096]), part.policy.width
    offset = random.uniform(60, 150) * (1 if half == "bf16" else 8)
    for model in (part.policy, part.reference):
        head = nn.Linear(width, vocabulary)
        nn.init.constant_(head.bias, round(offset))
        model.head = head
    return (
        part,
        _models(random, INSIDE, AUTOCAST),
        (places_of(Role.POLICY, "head", COMPUTE) | places_of(Role.REFERENCE, "head", COMPUTE)),
    )


def norm_variance(random: Random, half: HalfName) -> Parts:
    """The variance in a norm: its squares overflow FP16; BF16 subtracts two large numbers."""
    part = policy_part(random)
    block = random.randrange(part.policy.depth)
    strength = random.uniform(400, 900) if half == "fp16" else random.uniform(12, 20)

    def overflowing(x_BSD: Tensor) -> Tensor:
        large_BSD = x_BSD * strength
        return large_BSD * torch.rsqrt((large_BSD * large_BSD).mean(-1, keepdim=True) + 1)

    def cancelling(x_BSD: Tensor) -> Tensor:
        shifted_BSD = torch.tanh(x_BSD) + strength
        mean_BS1 = shifted_BSD.mean(-1, keepdim=True)
        variance_BS1 = (shifted_BSD * shifted_BSD).mean(-1, keepdim=True) - mean_BS1 * mean_BS1
        return torch.tanh(x_BSD) * torch.rsqrt(variance_BS1.abs() + 0.01)

    function = overflowing if half == "fp16" else cancelling
    part.policy.block(block).norm2 = _Own(function)
    roles = _models(random, ALL, INSIDE)
    return part, roles, places_of(Role.POLICY, f"blocks.{block}.norm2", COMPUTE, REDUCTION)


def accumulating_sum(random: Random, half: HalfName) -> Parts:
    """A running sum over a long history stops growing."""
    part = world_model_part(random, history=random.choice([300, 400]))
    spread = 1.0 if half == "bf16" else 8.0

    def running(x_BSD: Tensor) -> Tensor:
        total_BD = torch.zeros_like(x_BSD[:, 0])
        for step in range(x_BSD.shape[1]):
            total_BD = total_BD + (x_BSD[:, step] + spread)
        return total_BD / x_BSD.shape[1] - spread

    part.model.summary = _Own(running)
    roles = {Role.WORLD_MODEL: random.choice([ALL, INSIDE])}
    return part, roles, places_of(Role.WORLD_MODEL, "summary", COMPUTE)


def kl_in_half(random: Random, half: HalfName) -> Parts:
    """The KL penalty of a policy close to its reference is computed in half precision."""
    part = policy_part(random)
    roles = {**_models(random, AUTOCAST), Role.KL: ALL}
    return part, roles, places_of(Role.KL, "", COMPUTE)


def value_head(random: Random, half: HalfName) -> Parts:
    """Values near 6e4: FP16 overflows, and BF16 knows multiples of 256 only."""
    part = policy_part(random)
    last = part.value.last
    with torch.no_grad():
        last.weight.mul_(100)
        last.bias.fill_(random.uniform(65600, 80000) if half == "fp16" else 59904.0)
    part.rewards_B.mul_(100).add_(60000)
    return part, _models(random, INSIDE, AUTOCAST), places_of(Role.VALUE, "last", COMPUTE)


class _ConstantMask(Attention):
    """Adds a mask with a large constant; a row may be masked as a whole."""

    def masked(self, scores_BSS: Tensor) -> Tensor:
        length = scores_BSS.shape[-1]
        padding_SS = torch.ones(length, length, dtype=torch.bool).triu(1)
        padding_SS[-1] = True
        allowed_SS = torch.where(padding_SS, torch.zeros_like(scores_BSS[0]), 1.0)
        return scores_BSS + (1 - allowed_SS) * -1e9


def mask_constant(random: Random, half: HalfName) -> Parts:
    """The constant of an attention mask is minus infinity in FP16: a masked row becomes NaN."""
    part = policy_part(random)
    width = part.policy.width
    block = random.randrange(part.policy.depth)
    part.policy.block(block).attention = _ConstantMask(width)
    roles = _models(random, ALL, INSIDE)
    return part, roles, places_of(Role.POLICY, f"blocks.{block}.attention", COMPUTE, REDUCTION)


class _Biased(Attention):
    """Adds a large bias to every score, which softmax ignores."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__(width)
        self.bias = bias

    def masked(self, scores_BSS: Tensor) -> Tensor:
        length = scores_BSS.shape[-1]
        distance_SS = torch.arange(length)[None] - torch.arange(length)[:, None]
        later_SS = distance_SS > 0
        biased_BSS = scores_BSS + (self.bias + 0.25 * distance_SS.to(scores_BSS.dtype))
        return biased_BSS.masked_fill(later_SS, float("-inf"))


def large_logits(random: Random, half: HalfName) -> Parts:
    """Softmax of scores that a position bias has made large."""
    part = policy_part(random)
    width = part.policy.width
    block = random.randrange(part.policy.depth)
    bias = random.uniform(300, 600) * (1 if half == "bf16" else 8)
    part.policy.block(block).attention = _Biased(width, bias)
    roles = _models(random, ALL, INSIDE)
    return part, roles, places_of(Role.POLICY, f"blocks.{block}.attention", COMPUTE, REDUCTION)


def exp_before_clamp(random: Random, half: HalfName) -> Parts:
    """The weight of a sequence overflows before it is clamped, and its gradient is NaN."""
    part = policy_part(random)
    surprise = random.uniform(12, 20)

    def weighted(log_probs_BS: Tensor, advantages_BS: Tensor) -> Tensor:
        drift_BS = log_probs_BS - log_probs_BS.detach() + surprise
        weights_BS = drift_BS.exp().clamp(0.8, 1.28)
        return -(log_probs_BS * weights_BS * advantages_BS).mean()

    roles = {**_models(random, AUTOCAST), Role.POLICY: ALL}
    return replace(part, loss=weighted), roles, places_of(Role.POLICY, "", COMPUTE)


def masked_mean(random: Random, half: HalfName) -> Parts:
    """The mean over a long prompt: its sum overflows before the division."""
    part = world_model_part(random, history=random.choice([400, 600]))
    level = random.uniform(250, 400)

    def mean(x_BSD: Tensor) -> Tensor:
        mask_BS1 = torch.ones_like(x_BSD[..., :1])
        level_BD = ((x_BSD + level) * mask_BS1).sum(1) / mask_BS1.sum(1)
        return (level_BD - level) + x_BSD[:, -1]

    part.model.summary = _Own(mean)
    roles = {Role.WORLD_MODEL: random.choice([ALL, INSIDE])}
    return part, roles, places_of(Role.WORLD_MODEL, "summary", COMPUTE, REDUCTION)


def advantage(random: Random, half: HalfName) -> Parts:
    """Rewards that differ little, less their mean."""
    part = policy_part(random)
    part.rewards_B.add_(random.uniform(1000, 3000) * (1 if half == "bf16" else 8))
    roles = {**_models(random, INSIDE, AUTOCAST), Role.ADVANTAGE: ALL}
    return part, roles, places_of(Role.ADVANTAGE, "", COMPUTE, REDUCTION)


def log_of_softmax(random: Random, half: HalfName) -> Parts:
    """The logarithm of a probability that is 0 in FP16."""
    part = policy_part(random)
    factor = random.uniform(8, 14)  # FP32 still holds the probabilities
    with torch.no_grad():
        part.policy.head.weight.mul_(factor)
        part.reference.head.weight.mul_(factor)

    def log_probs(logits_BSV: Tensor, tokens_BS: Tensor) -> Tensor:
        every_BSV = logits_BSV[:, :-1].softmax(-1).log()
        return every_BSV.gather(-1, tokens_BS[:, 1:, None])[..., 0]

    roles = {**_models(random, AUTOCAST), Role.POLICY: ALL}
    return replace(part, log_probs=log_probs), roles, places_of(Role.POLICY, "", COMPUTE, REDUCTION)


class _Angles(Module):
    """Sines of positions far into a document."""

    def __init__(self, width: int, start: int) -> None:
        super().__init__()
        self.width, self.start = width, start

    def forward(self, tokens_BS: Tensor) -> Tensor:
        positions_S1 = torch.arange(tokens_BS.shape[1])[:, None] + self.start
        frequencies_D = 10 ** -torch.linspace(0, 3, self.width)
        return (positions_S1 * frequencies_D).sin()


def positions(random: Random, half: HalfName) -> Parts:
    """Angles of positions beyond the integers of the half type."""
    part = policy_part(random)
    width = part.policy.width
    start = random.randrange(1000, 4000) * (1 if half == "bf16" else 4)
    part.policy.positions = _Angles(width, start)
    roles = _models(random, ALL, INSIDE)
    return part, roles, places_of(Role.POLICY, "positions", COMPUTE)


REPORTED: Mapping[Family, tuple[HalfName, ...]] = MappingProxyType(
    {
        lm_head: ("bf16", "fp16"),
        norm_variance: ("bf16", "fp16"),
        accumulating_sum: ("bf16", "fp16"),
        kl_in_half: ("bf16", "fp16"),
        value_head: ("fp16", "bf16"),
        mask_constant: ("fp16",),
        large_logits: ("bf16", "fp16"),
        exp_before_clamp: ("fp16",),
        masked_mean: ("fp16",),
        advantage: ("bf16", "fp16"),
        log_of_softmax: ("fp16",),
        positions: ("bf16", "fp16"),
    }
)


# --------------------------------------------------------------------------------- tuning


def tiny_scale(random: Random, half: HalfName) -> Parts:
    """A factor and its inverse in two modules; FP16 loses the small number between them."""
    part = world_model_part(random)
    model = part.model
    factor = random.uniform(1e5, 1e6)
    model.decoder = nn.Sequential(model.decoder, _Own(lambda x: x / factor / factor))
    model.scale = _Own(lambda x: x * factor * factor)
    roles = {Role.WORLD_MODEL: random.choice([ALL, INSIDE])}
    return (
        part,
        roles,
        (
            places_of(Role.WORLD_MODEL, "decoder.1", COMPUTE)
            | places_of(Role.WORLD_MODEL, "scale", COMPUTE)
        ),
    )


def distances(random: Random, half: HalfName) -> Parts:
    """Squared distances of near points from their norms and products."""
    part = world_model_part(random)
    offset = random.uniform(10, 20)

    def spread(x_BSD: Tensor) -> Tensor:
        a_BSD, b_BSD = torch.tanh(x_BSD) + offset, torch.tanh(x_BSD.roll(1, 1)) + offset
        squares_BSD = a_BSD.square() + b_BSD.square() - 2 * a_BSD * b_BSD
        return squares_BSD.mean(1)

    part.model.summary = _Own(spread)
    roles = {Role.WORLD_MODEL: random.choice([ALL, INSIDE])}
    return part, roles, places_of(Role.WORLD_MODEL, "summary", COMPUTE)


def gate(random: Random, half: HalfName) -> Parts:
    """A gated product overflows FP16 before it is scaled down."""
    part = policy_part(random)
    block = part.policy.block(0)
    level = random.uniform(300, 600)
    block.mlp = nn.Sequential(
        nn.Linear(part.policy.width, part.policy.width),
        _Own(lambda x: (x * level + level) * (x.sigmoid() * level) / level**2),
    )
    return part, _models(random, ALL, INSIDE), places_of(Role.POLICY, "blocks.0.mlp.1", COMPUTE)


def discounted_sum(random: Random, half: HalfName) -> Parts:
    """Differences of a long cumulative sum of rewards."""
    part = policy_part(random)
    level = random.uniform(2000, 5000) * (1 if half == "bf16" else 8)

    def differences(rewards_B: Tensor, values_BS: Tensor) -> Tensor:
        sums_B = (rewards_B + level).cumsum(0)
        return (sums_B.diff(prepend=sums_B[:1] * 0) - level)[:, None] - 0.1 * values_BS

    roles = {**_models(random, INSIDE, AUTOCAST), Role.ADVANTAGE: ALL}
    return (
        replace(part, advantage=differences),
        roles,
        places_of(Role.ADVANTAGE, "", COMPUTE, REDUCTION),
    )


def tiny_embeddings(random: Random, half: HalfName) -> Parts:
    """Weights below what FP16 stores, scaled up at once."""
    part = policy_part(random)
    model = part.policy
    tokens = nn.Embedding(64, model.width)
    with torch.no_grad():
        tokens.weight.mul_(1e-8)
    model.tokens = nn.Sequential(tokens, _Own(lambda x: x * 1e8))
    return (
        part,
        _models(random, ALL, INSIDE),
        (places_of(Role.POLICY, "tokens.0", STORAGE) | places_of(Role.POLICY, "tokens.1", COMPUTE)),
    )


TUNING: Mapping[Family, tuple[HalfName, ...]] = MappingProxyType(
    {
        tiny_scale: ("fp16",),
        distances: ("bf16", "fp16"),
        gate: ("fp16",),
        discounted_sum: ("bf16", "fp16"),
        tiny_embeddings: ("fp16",),
    }
)


class HarmlessError(RuntimeError):
    """None of the draws of a fault has an effect, so its places are wrong."""


def plant(family: Family, seed: int, half: HalfName) -> Planted:
    """The fault *family* with the choices of *seed*.

    Choices with which the fault has no effect are drawn again: a quantity must be wrong by at least
    five times what it is with the places of the fault in FP32.

    Raises:
        HarmlessError: Ten draws had no effect.
    """
    for draw in range(10):
        experiment, roles, places = family(Random(f"{family.__name__} {half} {seed} {draw}"), half)
        planted = Planted(
            name=family.__name__,
            half=half,
            experiment=experiment,
            precisions=types(half, roles),
            places=frozenset(places),
        )
        if _has_effect(planted):
            return planted
    raise HarmlessError(f"{family.__name__} in {half} with seed {seed}")


def _has_effect(planted: Planted) -> bool:
    exact = planted.experiment.run(in_fp32).quantities
    with_fault, without = (
        _errors(planted, exact, fp32) for fp32 in (frozenset[Place](), planted.places)
    )
    finite = all(error.isfinite() for error in without.values())
    return finite and any(not with_fault[name] <= 5 * without[name] for name in exact)


def _errors(
    planted: Planted, exact: Mapping[str, Tensor], fp32: frozenset[Place]
) -> dict[str, Tensor]:
    """Norm of the error of each quantity."""
    with Numerics(planted.experiment.models, planted.precisions, fp32) as numerics:
        found = planted.experiment.run(numerics.role).quantities
    return {name: (found[name] - value).norm() for name, value in exact.items()}


def healthy(number: int, seed: int) -> Planted:
    """A model without a fault: a policy or a world model, in a random way to compute."""
    half: HalfName = "fp16" if number % 2 else "bf16"
    random = Random(f"healthy {number} {seed}")
    pattern = random.choice([ALL, INSIDE, AUTOCAST])
    experiment = policy_part(random) if number % 4 < 2 else world_model_part(random)
    roles = dict.fromkeys(experiment.models, pattern)
    return Planted(name="healthy", half=half, experiment=experiment, precisions=types(half, roles))
