"""Small real models, real jobs, and a detector of host reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from infrastructure.agent_contract import Evaluation, TrainingJob
from infrastructure.events import PrecisionName, PrecisionState
from infrastructure.events.event import BaseEvent
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision
from infrastructure.training.loop import LoopOptions, TrainingResult, train

_READS = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "is_nonzero")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.default_generator.manual_seed(0)  # torch.manual_seed also formats the stack
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)
    yield
    torch.set_num_threads(threads)


class ReadCounter(TorchDispatchMode):
    """Counts operations that make the host wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in str(func) for name in _READS):
            self.reads += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def read_counter() -> type[ReadCounter]:
    return ReadCounter


def mse(forward: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return nn.functional.mse_loss(forward(batch["x"]), batch["y"])


@pytest.fixture
def loss_fn() -> Callable[..., torch.Tensor]:
    return mse


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(32, 4, generator=generator)
    return {"x": x, "y": x.sum(1, keepdim=True)}


@pytest.fixture
def spiked() -> Callable[..., dict[str, torch.Tensor]]:
    """A batch with noise of its own in every step, and targets a thousandfold in one step."""

    def spiked(batch: dict[str, torch.Tensor], step: int, at: int = 50) -> dict[str, torch.Tensor]:
        noise = torch.randn(batch["y"].shape, generator=torch.Generator().manual_seed(step))
        return {"x": batch["x"], "y": (batch["y"] + 0.3 * noise) * (1000.0 if step == at else 1.0)}

    return spiked


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, fused=True),
    "adamw-loop": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
    "sgd-dampening": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, dampening=0.1, fused=True),
}


@pytest.fixture
def make_optimizer() -> dict[str, Callable[[Any], torch.optim.Optimizer]]:
    return OPTIMIZERS


@pytest.fixture
def make_trainer() -> Callable[..., FP16Trainer]:
    def make(
        precision: str = "fp16", optimizer: str = "adamw", seed: int = 0, **config: Any
    ) -> FP16Trainer:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 1))
        return FP16Trainer(
            model,
            OPTIMIZERS[optimizer](model.parameters()),
            FP16TrainingConfig(precision=Precision(precision), cpu_half=True, **config),
        )

    return make


@pytest.fixture
def make_job() -> Callable[..., TrainingJob]:
    """A regression with dropout (so that random state matters), 8 batches an epoch."""

    def make(
        epochs: int = 3,
        accumulate: int = 1,
        batches_per_epoch: int = 8,
        loss: Callable[..., torch.Tensor] = mse,
        model: nn.Module | None = None,
    ) -> TrainingJob:
        torch.manual_seed(7)
        model = model or nn.Sequential(
            nn.Linear(4, 16), nn.Dropout(0.2), nn.SiLU(), nn.Linear(16, 1)
        )

        def batches(epoch: int) -> list[dict[str, torch.Tensor]]:
            generator = torch.Generator().manual_seed(100 + epoch)
            xs = torch.randn(batches_per_epoch, 16, 4, generator=generator)
            return [{"x": x, "y": x.sum(1, keepdim=True)} for x in xs]

        def evaluate(forward: Any) -> Evaluation:
            held_out = batches(-1)[0]
            error = mse(forward, held_out).item()
            return Evaluation(metrics={"mse": error}, primary="mse", higher_is_better=False)

        return TrainingJob(
            model=model,
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
            batches=batches,
            loss=loss,
            evaluate=evaluate,
            epochs=epochs,
            scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, gamma=0.99),
            accumulate=accumulate,
        )

    return make


@pytest.fixture
def train_in() -> Callable[..., tuple[TrainingResult, list[BaseEvent]]]:
    """Train a job in a folder on the CPU; the result, and the events in order."""

    def train_in(
        job: TrainingJob,
        folder: Path,
        precision: PrecisionName = "fp16",
        events: list[BaseEvent] | None = None,
        **options: Any,
    ) -> tuple[TrainingResult, list[BaseEvent]]:
        events = [] if events is None else events  # one that outlives an error
        result = train(
            job,
            device=torch.device("cpu"),
            precision=PrecisionState(requested="fp16", effective=precision, reason="default"),
            config=FP16TrainingConfig(cpu_half=True, loss_scale=256.0, growth_interval=10),
            options=LoopOptions(seed=3, checkpoint_interval_seconds=3600.0, **options),
            folder=folder,
            emit=events.append,
            commands=lambda: [],
        )
        return result, events

    return train_in
