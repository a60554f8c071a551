"""Trainers whose losses run through each other's networks, beside the textbook's loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.measuring.textbook import Textbook
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision

SCALE = 2.0**14


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))


class ActorCritic:
    """An actor whose loss runs through two critics; each network has an optimizer of its own.

    Args:
        make: Builds what steps a network: a trainer, or the textbook's loop.
    """

    def __init__(self, make: Any) -> None:
        torch.manual_seed(0)
        networks = [mlp(4, 2), mlp(6, 1), mlp(6, 1)]
        self.actor, self.first, self.second = (
            make(network, torch.optim.AdamW(network.parameters(), lr=1e-2, fused=True))
            for network in networks
        )
        self.networks = nn.ModuleList(networks)

    def actor_loss(self, forward: Any, batch: dict[str, Tensor]) -> Tensor:
        acted = torch.cat((batch["observation"], forward(batch["observation"])), dim=1)
        values = torch.cat((self.first.forward(acted), self.second.forward(acted)), dim=1)
        return -values.float().amin(1).mean()

    @staticmethod
    def critic_loss(forward: Any, batch: dict[str, Tensor]) -> Tensor:
        taken = torch.cat((batch["observation"], batch["action"]), dim=1)
        return nn.functional.mse_loss(forward(taken).float(), batch["value"])

    def losses(self):
        return (
            (self.actor, self.actor_loss),
            (self.first, self.critic_loss),
            (self.second, self.critic_loss),
        )


def batches(count: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    made = []
    for index in range(count):
        observation = torch.randn(16, 4, generator=generator)
        action = torch.randn(16, 2, generator=generator)
        value = observation.sum(1, keepdim=True)
        if index % 11 == 7:
            value[0] = 1e6  # its gradient overflows FP16 at this scale
        made.append({"observation": observation, "action": action, "value": value})
    return made


def trained(precision: str, **options: Any) -> ActorCritic:
    config = FP16TrainingConfig(
        precision=Precision(precision),
        cpu_half=True,
        loss_scale=SCALE,
        growth_interval=5,
        max_grad_norm=None,
        **options,
    )
    both = ActorCritic(lambda network, optimizer: FP16Trainer(network, optimizer, config))
    for batch in batches(60):
        for trainer, loss in both.losses():
            trainer.train_batch(batch, loss)
    return both


def by_the_textbook(precision: str) -> ActorCritic:
    dtype = Precision(precision).compute
    both = ActorCritic(
        lambda network, optimizer: Textbook(
            network, optimizer, dtype, scale=SCALE, growth_interval=5, max_norm=None
        )
    )
    for batch in batches(60):
        for loop, loss in both.losses():
            loop.optimizer.zero_grad()
            loop.step(batch, loss)
    return both


def test_three_trainers_are_three_optimizers_with_zero_grad_in_fp32():
    ours, textbook = trained("fp32"), by_the_textbook("fp32")
    for name, expected in textbook.networks.state_dict().items():
        assert torch.equal(ours.networks.state_dict()[name], expected), name


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_three_trainers_skip_and_scale_as_three_scalers_do(precision):
    ours, textbook = trained(precision), by_the_textbook(precision)
    if precision == "fp16":
        assert ours.first.get_stats()["overflow_steps"] > 0
        for (trainer, _), (loop, _) in zip(ours.losses(), textbook.losses(), strict=True):
            assert trainer.scale_in_force.item() == loop.scaler.get_scale()
    for name, expected in textbook.networks.state_dict().items():
        torch.testing.assert_close(ours.networks.state_dict()[name], expected, rtol=1e-3, atol=1e-3)


def test_gradients_in_parameters_of_others_are_left_to_them():
    both = ActorCritic(lambda *given: FP16Trainer(*given, FP16TrainingConfig(precision="fp32")))
    both.actor.train_batch(batches(1)[0], both.actor_loss)
    assert all(parameter.grad is not None for parameter in both.first.model.parameters())
    assert all(parameter.grad is None for parameter in both.actor.model.parameters())


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("cast", [False, True])
def test_a_backward_pass_of_the_user_before_a_window_is_not_part_of_it(
    batch, loss_fn, make_trainer, accumulate, cast
):
    trainers = [make_trainer(accumulate=accumulate) for _ in range(2)]
    for trainer in trainers:
        if cast:
            trainer.cast_model_to_fp16()
        if trainer is trainers[0]:
            dtype = next(trainer.model.parameters()).dtype
            trainer.model(batch["x"].to(dtype)).sum().backward()
        for _ in range(2 * accumulate):
            trainer.train_batch(batch, loss_fn)
    states = [trainer.state_dict()["model"] for trainer in trainers]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
