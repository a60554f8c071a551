"""Modules whose forward pass changes what a later forward pass computes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Normaliser(nn.Module):
    """Running mean and variance of observations in float64, after Welford."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0, dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("squares", torch.ones(width, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.count += len(x)
            delta = x.double().mean(0) - self.mean
            self.mean += delta * len(x) / self.count
            self.squares += delta.square() * len(x)
        return ((x - self.mean) / (self.squares / self.count).sqrt()).float()


class Codebook(nn.Module):
    """Vector quantisation whose codes follow their inputs; written by ``.data``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(8, width))
        self.register_buffer("sizes", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        nearest = torch.cdist(x.detach().float(), self.codes).nan_to_num(0).argmin(1)
        chosen = torch.eye(8)[nearest]  # one_hot reads the device
        self.sizes.data.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
        self.codes.data.mul_(0.9).add_(chosen.t() @ x.detach().float(), alpha=0.1)
        return x + (self.codes[nearest] - x).detach()


class Memory(nn.Module):
    """A state that each forward pass replaces by another tensor."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(width, width)
        self.register_buffer("state", torch.zeros(1, width))

    def forward(self, x: Tensor) -> Tensor:
        after = self.cell(x, self.state.expand(len(x), -1))
        self.state = after.detach().float().mean(0, keepdim=True)
        return after


class ActNorm(nn.Module):
    """Scale that the first batch decides; a buffer of type bool remembers that it has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("is_known", torch.tensor(False))
        self.register_buffer("scale", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            first = x.detach().float().std(0) + 1e-3
            self.scale.copy_(torch.where(self.is_known, self.scale, first))
            self.is_known.fill_(True)
        return x / self.scale


class Queue(nn.Module):
    """The last inputs, and the place of the next one (as in MoCo)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(64, width))
        self.register_buffer("place", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            places = (self.place + torch.arange(len(x))) % len(self.rows)
            self.rows[places] = x.detach().float()
            self.place += len(x)
        return x + self.rows.mean(0)


class Range(nn.Module):
    """Moving least and largest value, half precision buffers of no dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("least", torch.tensor(0.0, dtype=torch.bfloat16))
        self.register_buffer("largest", torch.tensor(1.0, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.least.lerp_(x.detach().amin().bfloat16(), 0.25)
            self.largest.lerp_(x.detach().amax().bfloat16(), 0.25)
        return x / (1 + self.largest - self.least)


class Average(nn.Module):
    """Exponential moving average of its own weights, in a buffer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.register_buffer("average", self.linear.weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.average.lerp_(self.linear.weight.detach() * x.detach().float().mean(), 0.1)
        return self.linear(x) + nn.functional.linear(x, self.average.to(x.dtype))


class Constants(nn.Module):
    """Buffers that nothing writes: one of them expanded, one made in inference mode."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("shift", torch.tensor(0.5).expand(width))
        with torch.inference_mode():
            self.register_buffer("fixed", torch.ones(width))
        self.register_buffer("absent", None)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.shift)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm1d(16),
    "batch norm, cumulative": lambda: nn.BatchNorm1d(16, momentum=None),
    "instance norm": lambda: nn.Sequential(
        nn.Unflatten(1, (4, 4)), nn.InstanceNorm1d(4, track_running_stats=True), nn.Flatten()
    ),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16)),
    "spectral norm by a hook": lambda: nn.utils.spectral_norm(nn.Linear(16, 16)),
    "normaliser": lambda: Normaliser(16),
    "codebook": lambda: Codebook(16),
    "memory": lambda: Memory(16),
    "act norm": lambda: ActNorm(16),
    "queue": lambda: Queue(16),
    "range": Range,
    "average": lambda: Average(16),
    "constants": lambda: Constants(16),
}


def network(name: str) -> nn.Module:
    """A network with the module *name* in the middle; inputs ``[B, 4]``, outputs ``[B, 1]``."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), MODULES[name](), nn.SiLU(), nn.Linear(16, 1))


def batches(
    count: int, bad: int, precision: str, rows: int = 8
) -> tuple[list[dict[str, Tensor]], list[bool]]:
    """*count* batches of which *bad* have a row that overflows *precision*, or one of NaN."""
    large = 1e30 if precision == "fp16" else float("inf")
    generator = torch.Generator().manual_seed(3)
    is_bad = [False] * count
    for place in torch.randperm(count, generator=generator)[:bad].tolist():
        is_bad[place] = True
    made = []
    for index, unusable in enumerate(is_bad):
        x = torch.randn(rows, 4, generator=generator)
        y = x.sum(1, keepdim=True)
        if unusable:
            x[index % rows, 0] = large if index % 2 else float("nan")
        made.append({"x": x, "y": y})
    return made, is_bad
