"""A training by the library's loop, as a worker runs it, for the sections that watch one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from structlog.testing import capture_logs
from torch import Tensor
from torch.nn import functional

from benchmarks.step.models import SIZES, build_batches, build_model
from infrastructure.agent_contract import Evaluation, Forward, TrainingJob
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import PrecisionState
from infrastructure.events.event import BaseEvent
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop import LoopOptions, train

HALF = PrecisionState(requested="fp16", effective="fp16", reason="default")
SINGLE = PrecisionState(requested="fp16", effective="fp32", reason="flag")


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """A training with what it reported.

    Attributes:
        model: The trained model.
        events: Events of the training.
        logs: Its log entries.
    """

    model: torch.nn.Module
    events: Sequence[BaseEvent]
    logs: Sequence[Any]


def squared_error(forward: Forward, batch: Batch) -> Tensor:
    """Return the mean squared error."""
    return functional.mse_loss(forward(batch["x"]), batch["y"])


def train_watched(
    size: str, device: torch.device, folder: Path, *, steps: int, telemetry: int, cuda_graph: bool
) -> Watched:
    """Train a model of the step benchmark in FP16 for so many steps.

    Args:
        size: Name in `SIZES`.
        device: Device to train on.
        folder: Folder of its checkpoints.
        steps: Optimizer steps.
        telemetry: Steps between two measurements of lost updates; 0 for none.
        cuda_graph: Whether to take the steps by CUDA graphs.
    """
    cpu = torch.device("cpu")
    rows = [{"x": x, "y": y} for x, y in build_batches(SIZES[size], device, 0)]
    job = TrainingJob(
        model=build_model(SIZES[size], cpu, 0),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, fused=True),
        batches=lambda _: list(islice(cycle(rows), steps)),
        loss=squared_error,
        evaluate=lambda _: Evaluation(metrics={"none": 0.0}, primary="none", higher_is_better=True),
        epochs=1,
    )
    events: list[BaseEvent] = []
    with capture_logs() as logs:
        train(
            job,
            device=device,
            precision=HALF,
            config=FP16TrainingConfig(cuda_graph=cuda_graph, cpu_half=True, loss_scale=1024.0),
            options=LoopOptions(seed=0, telemetry_interval_steps=telemetry),
            folder=folder,
            emit=events.append,
            commands=tuple,
        )
    return Watched(model=job.model, events=events, logs=logs)
