"""Jobs of several parts as people have them, small, and a textbook's loop for any of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from infrastructure.agent_contract import Part, Target

GROWTH_INTERVAL = 20
Batch = dict[str, Tensor]
Computed = MutableMapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of job: its model, parts and targets, and a batch of a number."""

    model: Callable[[], nn.Module]
    parts: Sequence[Part]
    batch: Callable[[int], Batch]
    targets: Sequence[Target] = ()


def mlp(inputs: int, outputs: int, width: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs))


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True)


def part(name: str, trains: list[str], loss: Any, every: int = 1) -> Part:
    return Part(name=name, trains=trains, optimizer=adamw, loss=loss, every=every)


def spike(number: int) -> float:
    """1, but for one batch in eleven a number whose gradients overflow FP16."""
    return 3e3 if number % 11 == 7 else 1.0


def generator(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


# Twin delayed DDPG, Fujimoto et al. 2018.


class TwinDelayed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critics = mlp(4, 2), nn.ModuleList([mlp(6, 1), mlp(6, 1)])
        self.old_actor, self.old_critics = copy.deepcopy(self.actor), copy.deepcopy(self.critics)

    def act(self, x: Tensor) -> Tensor:
        return torch.tanh(self.actor(x))

    def values(self, x: Tensor, action: Tensor) -> Tensor:
        return torch.cat([critic(torch.cat((x, action), 1)) for critic in self.critics], 1)

    def old_value(self, x: Tensor, noise: Tensor) -> Tensor:
        action = (torch.tanh(self.old_actor(x)) + noise).clamp(-1, 1)
        values = [critic(torch.cat((x, action), 1)) for critic in self.old_critics]
        return torch.cat(values, 1).amin(1, keepdim=True)


def td3_critic(forward: Any, batch: Batch, _computed: Computed) -> Tensor:
    with torch.no_grad():
        old = forward.method("old_value", batch["next"], batch["noise"])
        value = batch["reward"] + 0.9 * old
    return (forward.method("values", batch["x"], batch["action"]) - value).square().mean()


def td3_actor(forward: Any, batch: Batch, _computed: Computed) -> Tensor:
    action = forward.method("act", batch["x"])
    return -forward.method("values", batch["x"], action)[:, 0].mean()


def td3_batch(number: int) -> Batch:
    given = generator(number)
    x, following = torch.randn(2, 16, 4, generator=given)
    reward = x.sum(1, keepdim=True) * spike(number)
    action, noise = torch.randn(2, 16, 2, generator=given)
    return {
        "x": x,
        "next": following,
        "reward": reward,
        "action": action.tanh(),
        "noise": 0.1 * noise,
    }


# Wasserstein GAN with gradient penalty, Gulrajani et al. 2017.


class Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = mlp(4, 3), mlp(3, 1)

    def fake(self, noise: Tensor) -> Tensor:
        return self.generator(noise)

    def judge(self, sample: Tensor) -> Tensor:
        return self.critic(sample)


def gan_critic(forward: Any, batch: Batch, _computed: Computed) -> Tensor:
    fake = forward.method("fake", batch["noise"]).detach()
    between = (batch["share"] * batch["real"] + (1 - batch["share"]) * fake).requires_grad_()
    judged = forward.method("judge", between).sum()
    (slope,) = torch.autograd.grad(judged, between, create_graph=True)
    penalty = (slope.norm(dim=1) - 1).square().mean()
    difference = (
        forward.method("judge", fake).mean() - forward.method("judge", batch["real"]).mean()
    )
    return difference + 10 * penalty


def gan_generator(forward: Any, batch: Batch, _computed: Computed) -> Tensor:
    return -forward.method("judge", forward.method("fake", batch["noise"])).mean()


def gan_batch(number: int) -> Batch:
    given = generator(number)
    real = torch.randn(16, 3, generator=given) * spike(number) + 1
    share, noise = torch.rand(16, 1, generator=given), torch.randn(16, 4, generator=given)
    return {"real": real, "noise": noise, "share": share}


# Proximal policy optimization with one trunk, Schulman et al. 2017; the value reads its features.


class SharedTrunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.policy, self.value = mlp(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.trunk(x))

    def logits(self, features: Tensor) -> Tensor:
        return self.policy(features)

    def worth(self, features: Tensor) -> Tensor:
        return self.value(features)


def ppo_policy(forward: Any, batch: Batch, computed: Computed) -> Tensor:
    features = computed["features"] = forward.method("features", batch["x"])
    log_probs = forward.method("logits", features).log_softmax(1)
    ratio = (log_probs.gather(1, batch["action"]) - batch["old"]).exp()
    gain = batch["advantage"]
    return -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()


def ppo_value(forward: Any, batch: Batch, computed: Computed) -> Tensor:
    return (forward.method("worth", computed["features"]) - batch["return"]).square().mean()


def ppo_batch(number: int) -> Batch:
    given = generator(number)
    x = torch.randn(16, 4, generator=given)
    return {
        "x": x,
        "action": torch.randint(3, (16, 1), generator=given),
        "old": torch.full((16, 1), -1.1),
        "advantage": torch.randn(16, 1, generator=given) * spike(number),
        "return": x.sum(1, keepdim=True) * spike(number + 3),
    }


# Variational autoencoder whose encoder and decoder have an optimizer each, Kingma and Welling 2014.


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(6, 4), mlp(2, 6)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        return self.decoder(mean + noise * (0.5 * log_variance).exp()), mean, log_variance


def vae_loss(forward: Any, batch: Batch, _computed: Computed) -> Tensor:
    decoded, mean, log_variance = forward(batch["x"], batch["noise"])
    divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(1)
    return (decoded - batch["x"]).square().sum(1).mean() + divergence.mean()


def vae_batch(number: int) -> Batch:
    given = generator(number)
    x = torch.randn(16, 6, generator=given) * spike(number)
    return {"x": x, "noise": torch.randn(16, 2, generator=given)}


# Recurrent world model, with actor and critic learned in imagination: Hafner et al. 2020.


class Dreamer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cell = nn.Linear(4, 8), nn.GRUCell(10, 8)
        self.decoder, self.reward = mlp(8, 4), mlp(8, 1)
        self.actor, self.critic = mlp(8, 2), mlp(8, 1)
        self.old_critic = copy.deepcopy(self.critic)

    def observe(self, x: Tensor, action: Tensor) -> Tensor:
        """States ``[B, T, 8]`` of observations ``[B, T, 4]`` after actions ``[B, T, 2]``."""
        state, states = x.new_zeros(len(x), 8), []
        for step in range(x.shape[1]):
            inputs = torch.cat((self.encoder(x[:, step]), action[:, step]), 1)
            state = self.cell(inputs, state.to(inputs.dtype))
            states.append(state)
        return torch.stack(states, 1)

    def predict(self, states: Tensor) -> tuple[Tensor, Tensor]:
        return self.decoder(states), self.reward(states)

    def imagine(self, state: Tensor, steps: int) -> Tensor:
        """States ``[B, steps, 8]`` that the actor leads to from *state*."""
        states = []
        for _ in range(steps):
            action = torch.tanh(self.actor(state))
            inputs = torch.cat((torch.zeros_like(state), action), 1)
            state = self.cell(inputs, state.to(inputs.dtype))
            states.append(state)
        return torch.stack(states, 1)

    def rewards(self, states: Tensor) -> Tensor:
        return self.reward(states)

    def worth(self, states: Tensor) -> Tensor:
        return self.critic(states)

    def old_worth(self, states: Tensor) -> Tensor:
        return self.old_critic(states)


def dreamer_world(forward: Any, batch: Batch, computed: Computed) -> Tensor:
    states = forward.method("observe", batch["x"], batch["action"])
    computed["start"] = states[:, -1]
    decoded, reward = forward.method("predict", states)
    return (decoded - batch["x"]).square().mean() + (reward - batch["reward"]).square().mean()


def dreamer_actor(forward: Any, _batch: Batch, computed: Computed) -> Tensor:
    states = forward.method("imagine", computed["start"], 5)
    computed["imagined"] = states
    rewards = forward.method("rewards", states)
    last = forward.method("worth", states[:, -1])
    return -(rewards.sum(1) + last).mean()


def dreamer_critic(forward: Any, _batch: Batch, computed: Computed) -> Tensor:
    states = computed["imagined"]
    with torch.no_grad():
        rewards = forward.method("rewards", states)
        after = forward.method("old_worth", states[:, -1:])
        values = rewards.flip(1).cumsum(1).flip(1) + after
    return (forward.method("worth", states) - values).square().mean()


def dreamer_batch(number: int) -> Batch:
    given = generator(number)
    x = torch.randn(8, 6, 4, generator=given)
    reward = x.sum(2, keepdim=True) * spike(number)
    return {"x": x, "action": torch.randn(8, 6, 2, generator=given), "reward": reward}


FAMILIES = {
    "td3": Family(
        model=TwinDelayed,
        parts=[
            part("critic", ["critics"], td3_critic),
            part("actor", ["actor"], td3_actor, every=2),
        ],
        targets=[
            Target(module="old_critics", source="critics", tau=0.05, every=2),
            Target(module="old_actor", source="actor", tau=0.05),
        ],
        batch=td3_batch,
    ),
    "gan": Family(
        model=Adversaries,
        parts=[
            part("critic", ["critic"], gan_critic),
            part("generator", ["generator"], gan_generator, every=5),
        ],
        batch=gan_batch,
    ),
    "ppo": Family(
        model=SharedTrunk,
        parts=[
            part("policy", ["trunk", "policy"], ppo_policy),
            part("value", ["value"], ppo_value),
        ],
        batch=ppo_batch,
    ),
    "vae": Family(
        model=Autoencoder,
        parts=[part("encoder", ["encoder"], vae_loss), part("decoder", ["decoder"], vae_loss)],
        batch=vae_batch,
    ),
    "dreamer": Family(
        model=Dreamer,
        parts=[
            part("world", ["encoder", "cell", "decoder", "reward"], dreamer_world),
            part("actor", ["actor"], dreamer_actor),
            part("critic", ["critic"], dreamer_critic),
        ],
        targets=[Target(module="old_critic", source="critic", tau=1.0, every=20)],
        batch=dreamer_batch,
    ),
}


def textbook(
    family: Family, model: nn.Module, steps: int, dtype: torch.dtype, scale: float
) -> dict[str, tuple[float, int]]:
    """Train *model* as a script does: an optimizer, ``zero_grad`` and a scaler for each part.

    Returns:
        Loss scale and skipped steps of each part.
    """
    autocast = torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32)

    class Forward:
        def __call__(self, *inputs: Any) -> Any:
            with autocast:
                return in_float32(model(*inputs))

        def method(self, name: str, *inputs: Any) -> Any:
            with autocast:
                return in_float32(getattr(model, name)(*inputs))

    def in_float32(value: Any) -> Any:
        return tuple(map(in_float32, value)) if isinstance(value, tuple) else value.float()

    def module_parameters(names: Sequence[str]) -> list[nn.Parameter]:
        return [p for name in names for p in model.get_submodule(name).parameters()]

    optimizers = {part.name: adamw(module_parameters(part.trains)) for part in family.parts}
    scalers = {
        part.name: torch.amp.GradScaler(
            "cpu", init_scale=scale, growth_interval=GROWTH_INTERVAL, enabled=dtype is torch.float16
        )
        for part in family.parts
    }
    stepped, skipped = dict.fromkeys(scalers, 0), dict.fromkeys(scalers, 0)
    for number in range(steps):
        batch, computed = family.batch(number), {}
        for part in family.parts:
            if number % part.every:
                continue
            optimizer, scaler = optimizers[part.name], scalers[part.name]
            optimizer.zero_grad()
            loss = part.loss(Forward(), batch, computed)
            computed = {name: tensor.detach() for name, tensor in computed.items()}
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            before = scaler.get_scale()
            scaler.update()
            was_skipped = scaler.get_scale() < before
            stepped[part.name] += 1
            skipped[part.name] += was_skipped
            if not was_skipped:
                follow(family.targets, part, model, stepped[part.name])
    return {name: (scalers[name].get_scale(), skipped[name]) for name in scalers}


@torch.no_grad()
def follow(targets: Sequence[Target], part: Part, model: nn.Module, steps: int) -> None:
    """Move the targets of what *part* trains, after its step number *steps*."""
    for target in targets:
        if target.source in part.trains and steps % target.every == 0:
            follower, source = map(model.get_submodule, (target.module, target.source))
            for old, new in zip(follower.parameters(), source.parameters(), strict=True):
                old.lerp_(new, target.tau)
