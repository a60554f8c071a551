"""The search for the smallest rung alone: no daemon, no training after it.

Each model is trained a little in FP32, then its last batches are searched as after a trip.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.rungs.models import FAULTS, WIDTH, healthy, planted
from infrastructure.events import Role
from infrastructure.events.event import RungSearched
from infrastructure.precision_lab.experiments import WorldModelExperiment
from infrastructure.precision_lab.rung import LossHistory, RungRequest
from infrastructure.precision_lab.rung.search import search_rung

ROWS, BATCHES, STEPS = 32, 4, 40


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


def measure(main_seed: int, healthy_models: int) -> None:
    """Print a row for each model and what was right."""
    began, rights, shares, replays = time.process_time(), [], [], []
    kinds = [*FAULTS, "head_6e4", "exploding_layer"]
    for number, kind in enumerate(kinds * 2):
        seed = 1000 * main_seed + number
        torch.manual_seed(seed)
        model, guilty = planted(kind, seed)
        found = searched(model, seed)
        inside = all(name == guilty or name.startswith(f"{guilty}.") for name in found.modules)
        rights.append(bool(found.modules) and inside)
        shares += [found.fp32_share or 0.0] if rights[-1] else []
        replays.append(found.replays)
        _show(kind, found, right=rights[-1])
    false = 0
    for number in range(healthy_models):
        torch.manual_seed(main_seed * 1000 + number)
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
        f"{median(replays)}\nhealthy models with a module raised: {false} of {healthy_models}\n"
        f"faults of FP32: {raised} raised, {named} of {len(failing)} named\n"
        f"{time.process_time() - began:.0f} CPU s"
    )
