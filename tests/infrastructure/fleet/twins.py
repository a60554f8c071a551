"""Trainings in a fleet beside the same trainings one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, StepLR

from infrastructure.fleet import Fleet, FleetMember
from infrastructure.training import FP16Trainer, FP16TrainingConfig

KINDS = (
    *("plain", "plain", "plain", "labels", "overflow"),
    *("nan batch", "nan loss", "twice", "no gradient"),
)


def loss(forward: Any, batch: Any) -> torch.Tensor:
    """Mean squared error, or what ``batch["kind"]`` asks for."""
    kind = batch.get("kind", "plain")
    if kind == "early error":
        raise RuntimeError("early")
    out = forward(batch["x"])
    if kind == "labels":
        return nn.functional.cross_entropy(out, batch["labels"])
    error = nn.functional.mse_loss(out, batch["y"])
    if kind == "late error":
        raise RuntimeError("late")
    if kind == "backward error":
        out = out.clone()
        out.register_hook(fail)
        error = out.mean()
    elif kind == "overflow":  # finite as a loss; in FP16, and beyond 1e19 anywhere, not its norm
        error = (out - out.detach()).mean() * 1e36 + error.detach()
    elif kind == "nan loss":
        error = error * float("nan")
    elif kind == "twice":
        error = error + forward(batch["x"] * 0.5).square().mean()
    elif kind == "no gradient":
        error = error * 0.0
    elif kind == "random":
        error = error * torch.rand(())
    return error


def fail(_: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("backward")


def perceptron(widths: Sequence[int], activation: type[nn.Module], dropout: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after, bias=after != 7), activation()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers[: -2 if dropout else -1])


class Twins:
    """Members of a fleet, and the same trainings alone."""

    def __init__(
        self,
        build: Callable[[], nn.Module],
        loss_of: Callable[[FP16Trainer], Callable[[Any, Any], torch.Tensor]] = lambda _: loss,
    ) -> None:
        self._build, self._loss_of = build, loss_of
        self.fleet = Fleet()
        self.names: list[str] = []
        self.alone: dict[str, FP16Trainer] = {}
        self.in_fleet: dict[str, FP16Trainer] = {}
        self._random: dict[str, torch.Tensor] = {}
        self._schedulers: dict[str, list[LRScheduler]] = {}

    def join(
        self, name: str, *, seed: int = 0, lr: float = 1e-2, optimizer: Any = None, **config: Any
    ) -> None:
        optimizer = optimizer or torch.optim.AdamW

        def trainer() -> FP16Trainer:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = self._build()
            chosen = {"cpu_half": True, "loss_scale": 1024.0, "growth_interval": 3} | config
            return FP16Trainer(
                model,
                optimizer(model.parameters(), lr=lr, fused=True),
                FP16TrainingConfig(**chosen),
            )

        self.names.append(name)
        self.alone[name], self.in_fleet[name] = trainer(), trainer()
        self._schedulers[name] = [
            StepLR(each.optimizer, step_size=2, gamma=0.5)
            for each in (self.alone[name], self.in_fleet[name])
        ]
        generator = torch.Generator().manual_seed(seed)
        self._random[name] = generator.get_state()
        own = self.in_fleet[name]
        member = FleetMember(trainer=own, loss=self._loss_of(own), generator=generator)
        self.fleet.join(name, member)

    def step(self, batches: dict[str, Any]) -> dict[str, Exception]:
        failed = self.fleet.step(batches)
        own: dict[str, Exception] = {}
        for name, batch in batches.items():
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(self._random[name])
                try:
                    self.alone[name].train_batch(batch, self._loss_of(self.alone[name]))
                except Exception as error:
                    own[name] = error
                self._random[name] = torch.get_rng_state()
        assert {n: str(e) for n, e in failed.items()} == {n: str(e) for n, e in own.items()}
        for name in batches.keys() - failed.keys():
            for scheduler in self._schedulers[name]:
                scheduler.step()
        return failed

    def check(self) -> None:
        """Every member has the bits of its twin, in all that a checkpoint holds."""
        for name in self.names:
            state, own = self.in_fleet[name].state_dict(), self.alone[name].state_dict()
            different = differences(state, own, name)
            assert different == [], different
            assert same(self.in_fleet[name].get_stats(), self.alone[name].get_stats())


def differences(one: Any, other: Any, place: str) -> list[str]:
    if isinstance(one, torch.Tensor):
        return [] if same(one, other) else [place]
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [f"{place}: keys"]
        return [d for key in one for d in differences(one[key], other[key], f"{place}/{key}")]
    if isinstance(one, list | tuple):
        pairs = enumerate(zip(one, other, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{place}/{i}")]
    return [] if one == other else [place]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one.nan_to_num(nan=7e7), other.nan_to_num(nan=7e7))
    return bool(one == other)
