"""A small job and a policy job, and their training by the loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from infrastructure.agent_contract import Evaluation, TrainingJob
from infrastructure.events import PrecisionState
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop import LoopOptions, train
from tests.infrastructure.training.distributed.scenarios.trainers import (
    CPU,
    adamw,
    micro_batch,
    mse,
    network,
    weights,
)


def job(
    *,
    batches: int = 8,
    epochs: int = 2,
    dropout: float = 0.0,
    loss: Any = mse,
    optimizer: Any = adamw,
    pause: float = 0.0,
) -> TrainingJob:
    def epoch(number: int) -> list[dict[str, Tensor]]:
        return [micro_batch(1000 * number + i) for i in range(batches)]

    def paused_loss(forward: Any, batch: dict[str, Tensor]) -> Tensor:
        time.sleep(pause)
        return loss(forward, batch)

    def evaluate(forward: Any) -> Evaluation:
        error = mse(forward, micro_batch(-1)).item()
        return Evaluation(metrics={"mse": error}, primary="mse", higher_is_better=False)

    return TrainingJob(
        model=network(dropout),
        optimizer=optimizer,
        batches=epoch,
        loss=paused_loss,
        evaluate=evaluate,
        epochs=epochs,
        scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, gamma=0.99),
    )


def run(
    job: TrainingJob,
    folder: Path,
    commands: Callable[[], list[Any]] = list,
    *,
    precision: str = "fp16",
    parallel: Any = "ddp",
    config: dict[str, Any] | None = None,
    wish: PrecisionState | None = None,
    **options: Any,
) -> dict[str, Any]:
    events: list[Any] = []
    wish = wish or PrecisionState(requested=precision, effective=precision, reason="default")
    result = train(
        job,
        device=CPU,
        precision=wish,
        config=FP16TrainingConfig(cpu_half=True, loss_scale=256.0, **(config or {})),
        options=LoopOptions(
            **{"seed": 3, "checkpoint_interval_seconds": 3600.0, "parallel": parallel, **options}
        ),
        folder=folder,
        emit=events.append,
        commands=commands,
    )
    return {
        "outcome": result.outcome,
        "steps": result.steps,
        "mse": result.evaluation.value if result.evaluation else None,
        "weights": weights(job.model),
        "next_random": torch.rand(()).item(),
        "events": [event.model_dump(mode="json") for event in events],
    }


def once(*commands: Any) -> Callable[[], list[Any]]:
    """All of the commands when first asked."""
    left = [*commands]

    def give() -> list[Any]:
        given = left[:]
        left.clear()
        return given

    return give


def after(calls: int, command: Any) -> Callable[[], list[Any]]:
    """The command when asked for the time after *calls* others."""
    asked = iter(range(1000))
    return lambda: [command] if next(asked) == calls else []


def language_job(overflow_at: int = -1) -> tuple[Any, list[int]]:
    """A policy of two batches a round for four rounds, and the rounds it has generated here.

    Args:
        overflow_at: Call of the loss on rank 1 whose gradient is too large for FP16.
    """
    from tests.infrastructure.policy.mismatch.policy_job import PAD, TokenBatch, a_job, sampled

    rounds: list[int] = []
    calls, asked = iter(range(1000)), iter(range(1000))
    plain = a_job()

    def batches(round_: int, roles: Any) -> list[dict[str, Tensor]]:
        if next(asked) == 0:  # with the untrained model, before the training
            first = TokenBatch.from_sequences([[5, 6]], [[7, 8]], pad_token=PAD)
            return [first.to_tensors()] * 2
        rounds.append(round_)
        return [
            sampled(roles.rollout, 2 * round_ + part, rows=4, tokens=6).to_tensors()
            for part in range(2)
        ]

    def loss(forward: Any, batch: dict[str, Tensor]) -> Tensor:
        value = plain.loss(forward, batch)
        if next(calls) == overflow_at and dist.get_rank() == 1:
            return (value - value.detach()) * 1e37
        return value

    return a_job(2, rounds_per_epoch=2, batches=batches, loss=loss, reference=True), rounds
