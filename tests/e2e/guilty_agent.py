"""The quick agent with one module whose own gradient FP16 cannot hold, in a larger network."""

from dataclasses import replace

import torch
from quick_agent import WIDTH, QuickAgent
from torch import nn


class Steep(torch.autograd.Function):
    """Identity, whose gradient is beyond FP16's range on the way back."""

    @staticmethod
    def forward(_context, x):
        return x.view_as(x)

    @staticmethod
    def backward(_context, gradient):
        return gradient * (torch.ones_like(gradient) * 1e30 * 1e-30)


class Guilty(nn.Module):
    """Overflows in FP16 in the backward pass, at every loss scale."""

    def __init__(self):
        super().__init__()
        self.narrow = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return Steep.apply(torch.tanh(self.narrow(x)) @ torch.eye(4, device=x.device))


class GuiltyAgent(QuickAgent):
    name = "guilty"

    def build_job(self, context, transitions):
        job = super().build_job(context, transitions)
        torch.manual_seed(context.seed)
        trunk = nn.Sequential(
            nn.Linear(1, WIDTH),
            nn.Tanh(),
            *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)),
        )
        model = nn.Sequential()
        model.add_module("trunk", trunk)
        model.add_module("guilty", Guilty())
        model.add_module("head", nn.Linear(4, 1))
        return replace(job, model=model)
