"""A small soft actor-critic: three parts and a target, and the loop that a textbook shows."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measuring.textbook import Textbook
from infrastructure.agent_contract import Evaluation, Part, Target, TrainingJob
from infrastructure.training import Precision

Batch = dict[str, Tensor]
TAU = 0.05


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))


class ActorCritic(nn.Module):
    """Soft actor-critic after Haarnoja et al. 2018; observations ``[B, 4]``, actions ``[B, 2]``."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = mlp(4, 2)
        self.critics = nn.ModuleList([mlp(6, 1), mlp(6, 1)])
        self.target = copy.deepcopy(self.critics)
        self.log_alpha = nn.Parameter(torch.tensor(0.0))

    def act(self, observation: Tensor) -> Tensor:
        return torch.tanh(self.actor(observation))

    def values(self, observation: Tensor, action: Tensor) -> Tensor:
        inputs = torch.cat((observation, action.to(observation.dtype)), dim=1)
        return torch.cat([critic(inputs) for critic in self.critics], dim=1)

    def target_value(self, observation: Tensor) -> Tensor:
        inputs = torch.cat((observation, self.act(observation).to(observation.dtype)), dim=1)
        return torch.cat([critic(inputs) for critic in self.target], dim=1).amin(1, keepdim=True)

    def temperature(self) -> Tensor:
        return self.log_alpha.exp()


def critic_loss(forward: Any, batch: Batch, _computed: MutableMapping[str, Tensor]) -> Tensor:
    with torch.no_grad():
        value = batch["reward"] + 0.9 * forward.method("target_value", batch["next"])
    predicted = forward.method("values", batch["observation"], batch["action"])
    return (predicted - value).square().mean()


def actor_loss(forward: Any, batch: Batch, computed: MutableMapping[str, Tensor]) -> Tensor:
    action = forward.method("act", batch["observation"])
    computed["entropy"] = -action.square().mean()
    value = forward.method("values", batch["observation"], action).amin(1).mean()
    return forward.method("temperature").detach() * action.square().mean() - value


def temperature_loss(forward: Any, _batch: Batch, computed: MutableMapping[str, Tensor]) -> Tensor:
    return forward.method("temperature") * (computed["entropy"] + 0.3)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3, fused=True)


PARTS = (
    Part(name="critic", trains=["critics"], optimizer=adamw, loss=critic_loss),
    Part(name="actor", trains=["actor"], optimizer=adamw, loss=actor_loss, every=2),
    Part(name="temperature", trains=["log_alpha"], optimizer=adamw, loss=temperature_loss, every=2),
)
TARGETS = (Target(module="target", source="critics", tau=TAU),)


def network() -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic()


def batches(count: int, seed: int = 5, bad: int = 11) -> list[Batch]:
    """Batches of which each *bad*-th has a reward whose gradient overflows FP16."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for index in range(count):
        observation, following = torch.randn(2, 16, 4, generator=generator)
        reward = observation.sum(1, keepdim=True)
        if index % bad == bad - 4:
            reward[0] = 1e6
        action = torch.randn(16, 2, generator=generator)
        made.append(
            {"observation": observation, "next": following, "action": action, "reward": reward}
        )
    return made


def make_job(
    epochs: int = 3, batches_per_epoch: int = 8, bad: int = 11, **changes: Any
) -> TrainingJob:
    def evaluate(forward: Any) -> Evaluation:
        (held_out,) = batches(1, seed=77)
        error = critic_loss(forward, held_out, {}).item()
        return Evaluation(metrics={"error": error}, primary="error", higher_is_better=False)

    given: dict[str, Any] = {
        "model": network(),
        "parts": PARTS,
        "targets": TARGETS,
        "batches": lambda epoch: batches(batches_per_epoch, seed=100 + epoch, bad=bad),
        "evaluate": evaluate,
        "epochs": epochs,
    }
    return TrainingJob(**given | changes)


@dataclass
class Scaled:
    """The textbook's loop of one optimizer among several."""

    loop: Textbook

    def step(self, loss: Tensor) -> bool:
        """Whether the step was applied."""
        before = self.loop.scaler.get_scale() if self.loop.scaler.is_enabled() else 1.0
        self.loop.optimizer.zero_grad()
        self.loop.update(loss)
        after = self.loop.scaler.get_scale() if self.loop.scaler.is_enabled() else 1.0
        return after >= before


def textbook(
    model: ActorCritic, given: list[Batch], precision: str, scale: float
) -> list[Textbook]:
    """Train *model* as a script does: three optimizers with ``zero_grad``, three scalers."""
    dtype = Precision(precision).compute
    loops = [
        Textbook(model, adamw(parameters), dtype, scale=scale, growth_interval=5, max_norm=None)
        for parameters in (model.critics.parameters(), model.actor.parameters(), [model.log_alpha])
    ]
    critic, actor, temperature = map(Scaled, loops)

    class Forward:
        @staticmethod
        def method(name: str, *inputs: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
                return getattr(model, name)(*inputs).float()

    for index, batch in enumerate(given):
        applied = critic.step(critic_loss(Forward, batch, {}))
        if applied:
            with torch.no_grad():
                for target, source in zip(
                    model.target.parameters(), model.critics.parameters(), strict=True
                ):
                    target.lerp_(source, TAU)
        if index % 2 == 0:
            computed: dict[str, Tensor] = {}
            actor.step(actor_loss(Forward, batch, computed))
            computed["entropy"] = computed["entropy"].detach()
            temperature.step(temperature_loss(Forward, batch, computed))
    return loops
