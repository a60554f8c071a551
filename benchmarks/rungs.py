"""The search for the smallest rung on planted faults, healthy models and faults of FP32.

``python -m benchmarks.rungs [--seed N]``. Each model is trained a little in FP32, then its last
batches are searched as after a trip. It measures the search alone: no daemon, no training after it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from infrastructure.events import Role
from infrastructure.events.event import RungSearched
from infrastructure.precision_lab.experiments import WorldModelExperiment
from infrastructure.precision_lab.rung import LossHistory, RungRequest
from infrastructure.precision_lab.rung.search import search_rung

WIDTH, ROWS, BATCHES, STEPS = 32, 32, 4, 40


class _Steep(torch.autograd.Function):
    @staticmethod
    def forward(_context: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_context: object, gradient: Tensor) -> Tensor:
        return gradient * (torch.ones_like(gradient) * 1e30 * 1e-30)


def _product(x: Tensor) -> Tensor:
    return (x + 2) @ torch.full((WIDTH, WIDTH), 60000.0) / 60000 / WIDTH


def _backward(x: Tensor) -> Tensor:
    changed: Tensor = _Steep.apply(x @ torch.eye(WIDTH))
    return changed


FAULTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "product": _product,
    "backward": _backward,
    "sum_of_squares": lambda x: x / ((x * 1000).square().sum(-1, keepdim=True) + 1).sqrt() * 1000,
    "softmax_1e5": lambda x: (x * 1e6).softmax(-1) + x,
    "epsilon": lambda x: x / (x.abs().clamp(max=0) + 1e-8) * 1e-8,
    "near_numbers": lambda x: (x + 8192) - 8192,
    "exponentials": lambda x: (x * 12 + 6).exp() / (1 + (x * 12 + 6).exp()) + x,
    "cumulated": lambda x: (x.abs() * 9000 + 9000).cumsum(-1) / 9e5 + x,
    "variance": lambda x: ((x + 300).square().mean(-1, keepdim=True) - 9e4) / 600 + x,
    "larger_of_two": lambda x: torch.maximum(x.abs() / 1e5 / 1e5 * 1e10, -x / 1e5 / 1e5 * 1e10),
}


class Faulty(nn.Module):
    """A linear layer, then the fault."""

    def __init__(self, fault: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self._fault = nn.Linear(WIDTH, WIDTH), fault

    def forward(self, x: Tensor) -> Tensor:
        """Apply both."""
        result: Tensor = self._fault(self.linear(x))
        return result


def planted(name: str, seed: int) -> tuple[nn.Module, str]:
    """A network with the fault somewhere, and the name of the module to blame."""
    generator = torch.Generator().manual_seed(seed)
    depth = int(torch.randint(4, 8, (), generator=generator))
    place = int(torch.randint(1, depth, (), generator=generator))
    linears = [nn.Linear(WIDTH, WIDTH) for _ in range(depth)]
    layers = [nn.Sequential(linear, nn.SiLU()) for linear in linears]
    head = nn.Linear(WIDTH, 1)
    model = nn.Sequential(*layers, head)
    if name == "head_6e4":
        with torch.no_grad():
            head.bias.fill_(7e4)
        return model, str(depth)
    if name == "exploding_layer":
        with torch.no_grad():
            linears[place].weight.mul_(3e5)
        layers[place].append(nn.Tanh())
        return model, str(place)
    model[place] = Faulty(FAULTS[name])
    return model, str(place)


class _Rows(nn.Module):
    """Rows of WIDTH numbers as sequences of four steps for *inner*, then a linear layer."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.last = inner, nn.LazyLinear(1)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, 1]``."""
        out = self.inner(x.view(len(x), 4, WIDTH // 4))
        out = out[0] if isinstance(out, tuple) else out
        result: Tensor = self.last(out.flatten(1))
        return result


def healthy(number: int) -> nn.Module:
    """One of ten architectures, most of torch's own modules."""
    part = WIDTH // 4
    wide, out = nn.Linear(WIDTH, 64), nn.Linear(64, 1)
    layer = nn.TransformerEncoderLayer(part, 2, 16, dropout=0.0, batch_first=True)
    makers: tuple[Callable[[], nn.Module], ...] = (
        lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)),
        lambda: nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, 1)
        ),
        lambda: nn.Sequential(
            nn.Linear(WIDTH, 64), nn.BatchNorm1d(64), nn.SiLU(), nn.Linear(64, 1)
        ),
        lambda: _Rows(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)),
        lambda: _Rows(nn.GRU(part, 16, batch_first=True)),
        lambda: _Rows(nn.Sequential(nn.Conv1d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 4, 3))),
        lambda: _Rows(nn.Sequential(nn.Conv1d(4, 8, 3), nn.GroupNorm(2, 8), nn.Tanh())),
        lambda: nn.Sequential(wide, nn.RMSNorm(64), nn.Mish(), out),
        lambda: nn.Sequential(wide, nn.PReLU(), out, nn.Softplus()),
        lambda: nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)), nn.Linear(WIDTH, 1)),
    )
    return makers[number % len(makers)]()


def _loss(forward: Any, batch: Mapping[str, Tensor]) -> Tensor:  # noqa: ANN401  # a Forward
    error: Tensor = forward(batch["x"]) - batch["y"]
    return error.square().mean()


def searched(
    model: nn.Module,
    seed: int,
    *,
    rate: float = 1e-3,
    spoil: Callable[[Tensor], Tensor] | None = None,
) -> RungSearched:
    """Train *model* in FP32, then search its last batches, with inputs that *spoil* changes."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(WIDTH, 1, generator=generator)
    batches = []
    for _ in range(STEPS):
        x = torch.randn(ROWS, WIDTH, generator=generator)
        batches.append({"x": x, "y": torch.tanh(x @ target / WIDTH**0.5)})
    model(batches[0]["x"])  # lazy modules
    optimizer, history = torch.optim.SGD(model.parameters(), lr=rate), LossHistory()
    for batch in batches:
        optimizer.zero_grad()
        loss = _loss(model, batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0 if rate < 1 else 1e9)
        if loss.isfinite() and norm.isfinite():
            optimizer.step()
        history = history.after(float(loss.detach()))
    last = [dict(batch) for batch in batches[-BATCHES:]]
    if spoil is not None:
        last[-1]["x"] = spoil(last[-1]["x"])
    experiment = WorldModelExperiment(models={Role.WORLD_MODEL: model}, batches=last, loss=_loss)
    return search_rung(experiment, RungRequest(half="fp16", step=STEPS, history=history))


def _spoilt(value: float) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.where(torch.arange(len(x))[:, None] == 0, value, x)


def _show(kind: str, found: RungSearched, *, right: bool) -> None:
    share = "" if found.fp32_share is None else f"{found.fp32_share:.1%}"
    names = ",".join(found.modules) or "-"
    print(  # a command
        f"{kind:24} {'yes' if right else 'NO':4} {found.cause:13} {names:18} {share:7} "
        f"{found.replays:4} {found.seconds:6.2f} s"
    )


def main() -> None:
    """Print a row for each model and what was right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--healthy", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began, rights, shares, replays = time.process_time(), [], [], []
    kinds = [*FAULTS, "head_6e4", "exploding_layer"]
    for number, kind in enumerate(kinds * 2):
        seed = 1000 * arguments.seed + number
        torch.manual_seed(seed)
        model, guilty = planted(kind, seed)
        found = searched(model, seed)
        inside = all(name == guilty or name.startswith(f"{guilty}.") for name in found.modules)
        rights.append(bool(found.modules) and inside)
        shares += [found.fp32_share or 0.0] if rights[-1] else []
        replays.append(found.replays)
        _show(kind, found, right=rights[-1])
    false = 0
    for number in range(arguments.healthy):
        torch.manual_seed(arguments.seed * 1000 + number)
        found = searched(healthy(number), number)
        false += bool(found.modules)
        _show(f"healthy {number}", found, right=not found.modules)
    failing: list[RungSearched] = []
    for number, value in enumerate((torch.nan, torch.inf, -torch.inf, 1e30) * 3):
        torch.manual_seed(number)
        model = healthy(number)
        spoil = _spoilt(value) if number < 8 else None
        failing.append(searched(model, number, rate=1e-3 if spoil else 1e4, spoil=spoil))
        right = not failing[-1].modules and failing[-1].cause in ("data", "optimisation")
        _show(f"FP32 fails {number}", failing[-1], right=right)
    named = sum(found.cause in ("data", "optimisation") for found in failing)
    raised = sum(bool(found.modules) for found in failing)
    print(  # a command
        f"\nonly modules to blame raised: {sum(rights)} of {len(rights)} faults, median share of "
        f"the forward operations in FP32 {median(shares or [0]):.1%}, median replays "
        f"{median(replays)}\nhealthy models with a module raised: {false} of {arguments.healthy}\n"
        f"faults of FP32: {raised} raised, {named} of {len(failing)} named\n"
        f"{time.process_time() - began:.0f} CPU s"
    )


if __name__ == "__main__":
    main()
