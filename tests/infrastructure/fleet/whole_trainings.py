"""Whole trainings in a fleet beside the same trainings alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from infrastructure.agent_contract import Evaluation, TrainingJob
from infrastructure.events import Command, PrecisionState
from infrastructure.fleet import Trainings
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.checkpoints import BestEpoch
from infrastructure.training.loop import (
    LoopOptions,
    Steps,
    TrainingResult,
    take_steps,
    training_steps,
)

_TIMES = {"seconds": 0.0, "fp32_seconds": 0.0, "path": ""}
PLAIN, OVERFLOW, NAN, ERROR, WIDE, RANDOM, EXIT = range(7)


@dataclass(kw_only=True)
class Plan:
    """One training.

    Attributes:
        special: Kind of batch by its number in the epoch, in every epoch.
        commands: Command after the n-th step.
        draws: Whether batches and evaluation draw from all global generators.
    """

    seed: int = 0
    widths: tuple[int, ...] = (8, 16, 4)
    rows: int = 8
    dropout: float = 0.0
    precision: Any = "fp32"
    epochs: int = 2
    batches: int = 4
    accumulate: int = 1
    special: Mapping[int, int] = field(default_factory=dict)
    commands: Mapping[int, Command] = field(default_factory=dict)
    draws: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    norm: bool = False
    patience: int | None = None

    def job(self) -> TrainingJob:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            layers: list[nn.Module] = [nn.Linear(*self.widths[:2]), nn.SiLU()]
            layers += [nn.Dropout(self.dropout)] if self.dropout else []
            layers += [nn.LayerNorm(self.widths[1])] if self.norm else []
            model = nn.Sequential(*layers, nn.Linear(*self.widths[1:]))

        def batches(epoch: int) -> Iterator[dict[str, torch.Tensor]]:
            generator = torch.Generator().manual_seed(1000 * self.seed + epoch)
            for number in range(self.batches):
                kind = self.special.get(number, PLAIN)
                width = self.widths[0] + (kind == WIDE)
                x = torch.randn(self.rows, width, generator=generator)
                y = torch.randn(self.rows, self.widths[-1], generator=generator)
                if self.draws:
                    x = x + torch.rand(()) + random.gauss(0, 1) + float(np.random.randn())
                yield {"x": x, "y": y, "kind": torch.tensor(kind)}

        def evaluate(forward: Any) -> Evaluation:
            generator = torch.Generator().manual_seed(self.seed)
            x = torch.randn(5, self.widths[0], generator=generator)
            value = float(forward(x).square().mean()) + (random.random() if self.draws else 0.0)
            return Evaluation(metrics={"m": value}, primary="m", higher_is_better=False)

        return TrainingJob(
            model=model,
            optimizer=lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
            batches=batches,
            loss=loss,
            evaluate=evaluate,
            epochs=self.epochs,
            patience=self.patience,
            scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, gamma=0.9),
            scheduler_counts="applied" if self.seed % 2 else "attempted",
            accumulate=self.accumulate,
        )


def loss(forward: Any, batch: Any) -> torch.Tensor:
    kind = int(batch["kind"])
    if kind == ERROR:
        raise ValueError("the loss fails")
    if kind == EXIT:
        raise SystemExit("the loss ends the process")
    out = forward(batch["x"])
    error = nn.functional.mse_loss(out, batch["y"])
    if kind == OVERFLOW:
        return (out - out.detach()).mean() * 1e36 + error.detach()
    if kind == NAN:
        return error * float("nan")
    if kind == RANDOM:
        return error * torch.rand(()) * random.random() * float(np.random.rand())
    return error


class Attempt:
    """One attempt of a plan in a folder, with what can be seen of it."""

    def __init__(self, plan: Plan, folder: Path, commands: Mapping[int, Command] | None = None):
        folder.mkdir(exist_ok=True)
        self.job, self._folder = plan.job(), folder
        self._events: list[Any] = []
        self._asked = 0
        self._plan, self._commands = plan, plan.commands if commands is None else commands
        self.end: Any = None

    def steps(self) -> Steps[TrainingResult]:
        plan = self._plan
        wish = PrecisionState(requested="fp16", effective=plan.precision, reason="default")
        config = {"cpu_half": True, "loss_scale": 1024.0, "growth_interval": 3, **plan.config}
        return training_steps(
            self.job,
            device=torch.device("cpu"),
            precision=wish,
            config=FP16TrainingConfig(**config),
            options=LoopOptions(
                seed=plan.seed,
                stats_interval_steps=3,
                checkpoint_interval_seconds=3600.0,
                **plan.options,
            ),
            folder=self._folder / "checkpoints",
            emit=self._events.append,
            commands=self._due,
            best_epoch=BestEpoch(self._folder / "best.pt"),
        )

    def _due(self) -> list[Command]:
        self._asked += 1
        command = self._commands.get(self._asked)
        return [] if command is None else [command]

    def run_alone(self) -> None:
        np.random.seed(self._plan.seed)
        try:
            self.end = take_steps(self.steps())
        except (Exception, SystemExit) as error:
            self.end = error

    def seen(self) -> dict[str, Any]:
        end = self.end
        files = sorted(self._folder.rglob("*.pt"))
        return {
            "end": (type(end), str(end)) if isinstance(end, BaseException) else end,
            "events": [_without_times(event) for event in self._events],
            "model": dict(self.job.model.state_dict()),
            "files": {path.name: (path.stat().st_size, _content(path)) for path in files},
        }


def run_together(attempts: Mapping[str, Attempt], join_rounds: Mapping[str, int]) -> list[str]:
    """Train *attempts* in one process, each from its round on; return what was told of them."""
    told: list[str] = []
    trainings: Trainings[TrainingResult] = Trainings(
        lambda name, standing: told.append(f"{name}: {standing.reason}")
    )
    waiting, round_ = dict(attempts), 0
    while waiting or len(trainings):
        for name in [name for name in waiting if join_rounds.get(name, 0) <= round_]:
            attempt = waiting.pop(name)
            np.random.seed(attempt._plan.seed)
            trainings.add(name, attempt.steps())
        for name, end in trainings.advance().items():
            attempts[name].end = end.result if end.error is None else end.error
        round_ += 1
    return told


def _without_times(event: Any) -> dict[str, Any]:
    fields = event.model_dump()
    found = {name: _TIMES.get(name, value) for name, value in fields.items()}
    found = {name: "NaN" if str(value) == "nan" else value for name, value in found.items()}
    return {"type": type(event).__name__, **found}


def _content(path: Path) -> Any:
    data = path.read_bytes()
    if path.name == "best.pt":
        return data
    return torch.load(path, weights_only=True)
