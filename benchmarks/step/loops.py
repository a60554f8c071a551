"""Loops without a library (textbook, folded by hand, naive), and this project's trainer.

Each builder takes a `Setup` and returns a `Loop`. All use AdamW ``fused=True`` and clip to
`MAX_NORM`, so that they do the same work.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Optimizer

from benchmarks.measuring.not_run import NotRunError
from benchmarks.measuring.textbook import Textbook
from benchmarks.step.models import Batch
from infrastructure.agent_contract import Forward
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision
from infrastructure.training.cuda_graphs import GraphedTrainer

Requested = Literal["fp32", "tf32", "bf16", "fp16"]
Mode = Literal["eager", "graph"]

LEARNING_RATE = 1e-3
MAX_NORM = 1.0
LOSS_SCALE = 65536.0
GROWTH_INTERVAL = 2000
HALF_DTYPES: dict[Requested, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Arguments of a loop's builder.

    Attributes:
        model: Model with float32 parameters on the device, owned by the loop.
        device: Device to compute on.
        precision: Requested precision; ``tf32`` differs from float32 only in CUDA's products.
        mode: ``graph`` for one CUDA graph of the whole step.
    """

    model: nn.Module
    device: torch.device
    precision: Requested
    mode: Mode = "eager"

    @property
    def half_dtype(self) -> torch.dtype | None:
        """Dtype of the autocast region; None without autocast."""
        return HALF_DTYPES.get(self.precision)


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """A model under training.

    Attributes:
        step: Trains on one batch: loss, backward, clip, update.
        model: Model as a caller would evaluate it.
        optimizer: Torch's optimizer, below any wrapper.
        enter: Restores global state that this loop needs; called before a block of steps.
        note: Difference from the other loops, shown in the results.
    """

    step: Callable[[Batch], None]
    model: nn.Module
    optimizer: Optimizer
    enter: Callable[[], None] = lambda: None
    note: str = ""


def adamw(model: nn.Module, *, fused: bool = True) -> AdamW:
    """Return the optimizer that every loop uses."""
    return AdamW(model.parameters(), lr=LEARNING_RATE, fused=fused)


def require_eager(setup: Setup) -> None:
    """Refuse the graph mode.

    Raises:
        NotRunError: The set-up asks for a graph.
    """
    if setup.mode == "graph":
        raise NotRunError("this loop runs eagerly only; only ours has a graph mode")


def textbook(setup: Setup) -> Loop:
    """Build the loop of torch's AMP recipe: unscale, clip, step, update."""
    require_eager(setup)
    loop = textbook_of(setup)

    def loss(forward: Callable[..., Tensor], batch: Batch) -> Tensor:
        return functional.mse_loss(forward(batch.x).float(), batch.y)

    def step(batch: Batch) -> None:
        loop.step(batch, loss)

    return Loop(step=step, model=loop.model, optimizer=loop.optimizer)


def textbook_of(setup: Setup) -> Textbook:
    """The textbook's loop for *setup*."""
    return Textbook(
        setup.model,
        adamw(setup.model),
        setup.half_dtype or torch.float32,
        scale=LOSS_SCALE,
        growth_interval=GROWTH_INTERVAL,
        max_norm=MAX_NORM,
        device=setup.device.type,
    )


def folded(setup: Setup) -> Loop:
    """Build the same step by hand: one norm, one fused pass, overflows counted on the device.

    It handles this case only: nothing is checked or saved.
    """
    require_eager(setup)
    model, optimizer = setup.model, adamw(setup.model)
    fused = cast("Any", optimizer)
    parameters = list(model.parameters())
    scales = setup.precision == "fp16"
    scale = torch.full((), LOSS_SCALE if scales else 1.0, device=setup.device)
    tracker = torch.zeros((), dtype=torch.int32, device=setup.device)
    overflows = torch.zeros((), device=setup.device)

    def step(batch: Batch) -> None:
        with _autocast(setup):
            loss = functional.mse_loss(model(batch.x), batch.y)
        (loss * scale if scales else loss).backward()
        norm = torch.nn.utils.get_total_norm([cast("Tensor", p.grad) for p in parameters])
        found_inf = norm.mul(0.0).ne_(0.0)  # 1 where inf or NaN, else 0
        fused.grad_scale = torch.maximum(norm / MAX_NORM, scale)
        fused.found_inf = found_inf
        optimizer.step()
        if scales:
            torch._amp_update_scale_(scale, tracker, found_inf, 2.0, 0.5, GROWTH_INTERVAL)
        overflows.add_(found_inf)
        for parameter in parameters:
            parameter.grad = None

    return Loop(step=step, model=model, optimizer=optimizer)


def naive(setup: Setup) -> Loop:
    """Build a loop in the original trainer's style: it infers overflows and reads every loss."""
    require_eager(setup)
    model, optimizer = setup.model, adamw(setup.model)
    scaler = torch.amp.GradScaler(
        setup.device.type, init_scale=LOSS_SCALE, enabled=setup.precision == "fp16"
    )
    totals: dict[str, float] = {"overflows": 0.0, "loss": 0.0}

    def step(batch: Batch) -> None:
        optimizer.zero_grad(set_to_none=True)
        with _autocast(setup):
            loss = functional.mse_loss(model(batch.x), batch.y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        totals["overflows"] += scaler.get_scale() < before
        totals["loss"] += loss.item()

    return Loop(step=step, model=model, optimizer=optimizer)


def ours(setup: Setup) -> Loop:
    """Build a loop of `FP16Trainer` as its documentation describes."""
    trainer = FP16Trainer(setup.model, adamw(setup.model), trainer_config(setup))

    def step(batch: Batch) -> None:
        trainer.step(trainer.training_step(batch, mse))

    return Loop(
        step=_graphed(trainer) if setup.mode == "graph" else step,
        model=setup.model,
        optimizer=trainer.optimizer,
    )


def _graphed(trainer: FP16Trainer) -> Callable[[Batch], None]:
    graphs = GraphedTrainer(trainer)

    def step(batch: Batch) -> None:
        graphs.train_batch(batch, mse)
        if graphs.refused_reason:
            raise NotRunError(graphs.refused_reason)

    return step


def trainer_config(setup: Setup) -> FP16TrainingConfig:
    """Return the trainer's configuration for *setup*.

    Raises:
        NotRunError: The set-up asks for a graph on a CPU.
    """
    if setup.mode == "graph" and setup.device.type != "cuda":
        raise NotRunError("CUDA graphs exist on CUDA only")
    return FP16TrainingConfig(
        precision=Precision(setup.precision) if setup.half_dtype else Precision.FP32,
        cpu_half=True,
        loss_scale=LOSS_SCALE,
        growth_interval=GROWTH_INTERVAL,
        max_grad_norm=MAX_NORM,
    )


def mse(forward: Forward, batch: Batch) -> Tensor:
    """Return the mean squared error, float32 ``[]``."""
    return functional.mse_loss(forward(batch.x), batch.y)


def _autocast(setup: Setup) -> AbstractContextManager[Any]:
    if setup.half_dtype is None:
        return nullcontext()
    return torch.autocast(setup.device.type, dtype=setup.half_dtype)
