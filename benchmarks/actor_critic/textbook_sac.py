"""Soft actor-critic as a script does it: three optimizers, three `GradScaler`s, one loop.

Legend: B transitions, 3 numbers of a state, 1 of an action.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

HIDDEN, BATCH, WARM_UP, DISCOUNT, TAU, RATE = 64, 256, 1000, 0.99, 0.005, 1e-3
REWARD_SCALE, TORQUE = 0.1, 2.0


def network(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    layers = [nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(HIDDEN, outputs))


class Updates:
    """One optimizer with its `GradScaler`, which does nothing but in FP16."""

    def __init__(self, parameters: Iterable[nn.Parameter], dtype: torch.dtype) -> None:
        self._optimizer = torch.optim.Adam(parameters, lr=RATE)
        self._scaler = torch.amp.GradScaler("cpu", enabled=dtype is torch.float16)

    def step(self, loss: Tensor) -> None:
        """Update the parameters by *loss*."""
        self._optimizer.zero_grad()
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()


class TextbookSac:
    """Networks and updates.

    Args:
        dtype: Type of autocast; float32 for none.

    Attributes:
        actor: Network that gives mean and logarithm of the deviation before the tanh.
        critics, targets: Both critics, and their targets.
        log_temperature: Logarithm of the weight of the entropy.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.actor = network(3, 2)
        self.critics = nn.ModuleList(network(4, 1) for _ in range(2))
        self.targets = copy.deepcopy(self.critics)
        self.log_temperature = nn.Parameter(torch.zeros(()))
        self._dtype = dtype
        self._of_actor = Updates(self.actor.parameters(), dtype)
        self._of_critics = Updates(self.critics.parameters(), dtype)
        self._of_temperature = Updates([self.log_temperature], dtype)

    def sample(self, state_B3: Tensor) -> tuple[Tensor, Tensor]:
        """Actions in (-1, 1), ``[B, 1]``, and their log-densities ``[B]``."""
        with self._autocast():
            raw_B2 = self.actor(state_B3)
        mean_B1, log_std_B1 = raw_B2.float().chunk(2, 1)
        normal = torch.distributions.Normal(mean_B1, log_std_B1.clamp(-20, 2).exp())
        raw_B1 = normal.rsample()
        squash_B1 = 2 * (math.log(2) - raw_B1 - functional.softplus(-2 * raw_B1))
        return raw_B1.tanh(), (normal.log_prob(raw_B1) - squash_B1).sum(1)

    def update(self, batch: tuple[Tensor, ...]) -> None:
        """Update critics, actor, temperature and targets once."""
        state_B3, action_B1, reward_B, next_B3, terminated_B = batch
        temperature = self.log_temperature.exp().detach()
        with torch.no_grad():
            next_action_B1, log_prob_B = self.sample(next_B3)
            next_B = self._values(self.targets, next_B3, next_action_B1).amin(1)
            soft_B = next_B - temperature * log_prob_B
            target_B = REWARD_SCALE * reward_B + DISCOUNT * (1 - terminated_B) * soft_B
        values_B2 = self._values(self.critics, state_B3, action_B1)
        self._of_critics.step((values_B2 - target_B[:, None]).square().mean(0).sum())
        new_B1, log_prob_B = self.sample(state_B3)
        value_B = self._values(self.critics, state_B3, new_B1).amin(1)
        self._of_actor.step((temperature * log_prob_B - value_B).mean())
        entropy = -log_prob_B.mean().detach()
        self._of_temperature.step(self.log_temperature * (entropy + 1.0))
        with torch.no_grad():
            pairs = zip(self.targets.parameters(), self.critics.parameters(), strict=True)
            for target, source in pairs:
                target.lerp_(source, TAU)

    def _values(self, critics: Iterable[nn.Module], state_B3: Tensor, action_B1: Tensor) -> Tensor:
        with self._autocast():
            inputs_B4 = torch.cat((state_B3, action_B1), 1)
            return torch.cat([critic(inputs_B4) for critic in critics], 1).float()

    def _autocast(self) -> torch.autocast:
        half = self._dtype is not torch.float32
        return torch.autocast("cpu", torch.bfloat16 if not half else self._dtype, enabled=half)


def train(steps: int, dtype: torch.dtype, seed: int) -> nn.Module:
    """The actor after so many *steps*, each with an update once the warm-up is over."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    learner, environment = TextbookSac(dtype), gymnasium.make("Pendulum-v1")
    memory = [np.zeros((steps, width), np.float32) for width in (3, 1, 1, 3, 1)]
    state, _ = environment.reset(seed=seed)
    for step in range(steps):
        if step < WARM_UP:
            action = random.uniform(-1, 1, 1).astype(np.float32)
        else:
            with torch.no_grad():
                action = learner.sample(torch.as_tensor(state)[None])[0][0].numpy()
        following, reward, terminated, truncated, _ = environment.step(TORQUE * action)
        for array, value in zip(
            memory, (state, action, reward, following, terminated), strict=True
        ):
            array[step] = value
        state = environment.reset()[0] if terminated or truncated else following
        if step >= WARM_UP:
            rows = random.integers(step + 1, size=BATCH)
            sampled = [torch.from_numpy(array[rows]) for array in memory]
            learner.update(tuple(t[:, 0] if n in (2, 4) else t for n, t in enumerate(sampled)))
    return learner.actor
