"""Models and batches on which every loop is measured.

Shapes: B rows, F features in and out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

FEATURES = 64
_BATCHES = 8  # a loop cycles through them, so that it memorises none


class Batch(NamedTuple):
    """A batch of transitions.

    Attributes:
        x: float32 ``[B, F]``, observations and actions.
        y: float32 ``[B, F]``, next observations.
    """

    x: Tensor
    y: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """A model size with its batch size.

    Attributes:
        name: Name on the command line.
        hidden_layers: Number of hidden layers.
        width: Width of each hidden layer.
        batch: Rows of a batch.
        cpu_steps: Steps in a timed block on a CPU, about 50 ms.
        cpu_fp16: Whether FP16 is measured on a CPU, which has no fast FP16 product.
    """

    name: str
    hidden_layers: int
    width: int
    batch: int
    cpu_steps: int
    cpu_fp16: bool = False


SIZES = {
    size.name: size
    for size in (
        Size(name="tiny", hidden_layers=2, width=64, batch=32, cpu_steps=64, cpu_fp16=True),
        Size(name="small", hidden_layers=3, width=256, batch=256, cpu_steps=16),
        Size(name="medium", hidden_layers=4, width=1024, batch=1024, cpu_steps=1),
        Size(name="large", hidden_layers=4, width=1024, batch=16384, cpu_steps=1),
    )
}


def build_model(size: Size, device: torch.device, seed: int) -> nn.Module:
    """Build a perceptron with float32 parameters; *seed* determines the weights.

    Torch's global generators do not change.
    """
    widths = [FEATURES, *[size.width] * size.hidden_layers, FEATURES]
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.SiLU()]
    return nn.Sequential(*layers[:-1]).to(device)


def build_batches(size: Size, device: torch.device, seed: int) -> list[Batch]:
    """Build batches of a smooth, noise-free map; *seed* determines them."""
    generator = torch.Generator().manual_seed(seed)
    mixing_FF = torch.randn(FEATURES, FEATURES, generator=generator) / FEATURES**0.5
    batches = []
    for _ in range(_BATCHES):
        x_BF = torch.randn(size.batch, FEATURES, generator=generator)
        batches.append(Batch(x_BF.to(device), torch.tanh(x_BF @ mixing_FF).to(device)))
    return batches
