"""A GAN with two trainers, each with its own loss scale."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from infrastructure.agent_contract import Forward
from infrastructure.training import FP16Trainer, FP16TrainingConfig

CONFIG = FP16TrainingConfig(cpu_half=True)  # FP16 on a CPU too, to try it


def make_trainer(network: nn.Module) -> FP16Trainer:
    """The trainer of *network*, with an optimizer of its own."""
    adam = torch.optim.Adam(network.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
    return FP16Trainer(network, adam, CONFIG)


generator = make_trainer(nn.Sequential(nn.Linear(4, 32), nn.SiLU(), nn.Linear(32, 8)))
critic = make_trainer(nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1)))


def critic_loss(forward: Forward, batch: dict[str, Tensor]) -> Tensor:
    """The critic tells real from fake."""
    real, fake = forward(batch["real"]), forward(batch["fake"])
    return nn.functional.softplus(-real).mean() + nn.functional.softplus(fake).mean()


def generator_loss(forward: Forward, noise: Tensor) -> Tensor:
    """The generator's results look real to the critic."""
    return nn.functional.softplus(-critic.forward(forward(noise))).mean()


for real in torch.randn(32, 16, 8):
    noise = torch.randn(16, 4)
    with torch.no_grad():
        pair = {"real": real, "fake": generator.forward(noise)}
    critic.step(critic.training_step(pair, critic_loss))
    generator.step(generator.training_step(noise, generator_loss))
    critic.optimizer.zero_grad()  # drops gradients in the generator's loss scale
