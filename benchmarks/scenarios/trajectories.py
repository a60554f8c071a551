"""Synthetic trajectories of a small deterministic world, and the small model that learns it.

Shapes: T trajectories, B rows, O observation features, A action features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.step.models import Batch

TRANSITIONS = 32  # in a trajectory
_OBSERVATION, _ACTION, _HIDDEN = 8, 2, 64
_BATCH = 64
_HELD_OUT = 8  # one of this many trajectories is held out


def build_data(trajectories: int, device: torch.device, seed: int) -> tuple[list[Batch], Batch]:
    """Build shuffled training batches and the held-out transitions of whole trajectories.

    The arguments determine the data. Inputs are observation and action, targets the next
    observation.
    """
    generator = torch.Generator().manual_seed(seed)
    drift_OO = torch.randn(_OBSERVATION, _OBSERVATION, generator=generator) / _OBSERVATION**0.5
    push_AO = torch.randn(_ACTION, _OBSERVATION, generator=generator)
    observation_TO = torch.randn(trajectories, _OBSERVATION, generator=generator)
    inputs: list[Tensor] = []
    targets: list[Tensor] = []
    for _ in range(TRANSITIONS):
        action_TA = torch.randn(trajectories, _ACTION, generator=generator)
        inputs.append(torch.cat((observation_TO, action_TA), dim=1))
        observation_TO = torch.tanh(1.5 * observation_TO @ drift_OO + 0.5 * action_TA @ push_AO)
        targets.append(observation_TO)
    x, y = torch.stack(inputs, dim=1).to(device), torch.stack(targets, dim=1).to(device)
    held_out = trajectories // _HELD_OUT
    x_train, y_train = x[held_out:].flatten(0, 1), y[held_out:].flatten(0, 1)
    order = torch.randperm(len(x_train), generator=generator).to(device)
    batches = [Batch(x_train[rows], y_train[rows]) for rows in order.split(_BATCH)]
    return batches, Batch(x[:held_out].flatten(0, 1), y[:held_out].flatten(0, 1))


def build_world_model(device: torch.device, seed: int) -> nn.Module:
    """Build a perceptron from observation and action to the next observation, in float32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(_OBSERVATION + _ACTION, _HIDDEN),
            nn.SiLU(),
            nn.Linear(_HIDDEN, _HIDDEN),
            nn.SiLU(),
            nn.Linear(_HIDDEN, _OBSERVATION),
        ).to(device)
