"""The fleets that are measured: models, batches, losses.

Shapes: B rows, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.step.models import FEATURES, Size, build_model
from infrastructure.world_model import EnsembleNetwork, NetworkShape
from infrastructure.world_model.networks import build_seeded, ensemble_loss

HIDDEN_LAYERS = 3
_WORLD = NetworkShape(dense=16, texts={}, boxes={"state": 12, "reward": 1}, labels={"ended": 2})
_BATCHES = 8  # of each member; a loop cycles through them

Batch = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A kind of member.

    Attributes:
        name: What the table calls it.
        rows: Rows of a batch.
        build: Function from a seed to a model.
        loss: Function from forward and batch to a scalar.
        target: Speed-up over one after the other that is aimed at, with 16 members.
        is_plain: Whether it is a perceptron, which is measured beside ``torch.vmap`` too.
    """

    name: str
    rows: int
    build: Callable[[int], nn.Module]
    loss: Callable[[Any, Batch], Tensor]
    target: float
    is_plain: bool

    def batches(self, member: int) -> Sequence[Batch]:
        """Batches of *member*, the same in every call."""
        generator = torch.Generator().manual_seed(member)
        random = partial(torch.randn, generator=generator)
        if self.is_plain:
            shape = (self.rows, FEATURES)
            return [{"x": random(shape), "y": random(shape)} for _ in range(_BATCHES)]
        return [
            {
                "dense": random(self.rows, _WORLD.dense),
                "target.state": random(self.rows, 12),
                "target.reward": random(self.rows, 1),
                "target.ended": torch.randint(2, (self.rows,), generator=generator),
            }
            for _ in range(_BATCHES)
        ]


def squared_error(forward: Any, batch: Batch) -> Tensor:  # noqa: ANN401 a Forward or a model
    """Mean squared error of a perceptron."""
    return nn.functional.mse_loss(forward(batch["x"]), batch["y"])


def subjects() -> list[Subject]:
    """The fleets of the table, in its order."""
    plain = [
        Subject(
            name=f"{HIDDEN_LAYERS} hidden layers of {width}",
            rows=32,
            build=partial(_perceptron, width),
            loss=squared_error,
            target=target,
            is_plain=True,
        )
        for width, target in ((64, 4.0), (128, 2.5), (256, 1.4))
    ]
    world = [
        Subject(
            name="world model, 5 members of 64",
            rows=rows,
            build=_world_model,
            loss=ensemble_loss,
            target=target,
            is_plain=False,
        )
        for rows, target in ((32, 1.8), (64, 1.4), (256, 1.0))
    ]
    return plain + world


def _perceptron(width: int, seed: int) -> nn.Module:
    size = Size(name="plain", hidden_layers=HIDDEN_LAYERS, width=width, batch=32, cpu_steps=8)
    return build_model(size, torch.device("cpu"), seed)


def _world_model(seed: int) -> nn.Module:
    return build_seeded(EnsembleNetwork, _WORLD, seed)
