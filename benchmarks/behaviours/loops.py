"""Four loops with one interface, each as its documentation has it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ExponentialLR

from benchmarks.measuring.textbook import Textbook
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision

Batch: TypeAlias = dict[str, Tensor]
Loss: TypeAlias = Callable[[Callable[[Tensor], Tensor], Batch], Tensor]

OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "fused AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False),
    "fused SGD": lambda model: torch.optim.SGD(model.parameters(), lr=1e-2, fused=True),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """How a loop is begun.

    Attributes:
        precision: Precision of the forward pass.
        optimizer: Key of `OPTIMIZERS`.
        scale: Initial loss scale.
        accumulate: Micro-batches in a window.
        max_norm: Largest norm of the gradients; None does not clip.
        half: Whether the parameters are float16.
    """

    precision: Literal["fp32", "fp16"] = "fp16"
    optimizer: str = "fused AdamW"
    scale: float = 65536.0
    accumulate: int = 1
    max_norm: float | None = 1.0
    half: bool = False


class Loop(Protocol):
    """A loop that trains a small network of four inputs; its learning rate halves by the step.

    Attributes:
        model: The network, as it was begun.
    """

    model: nn.Module

    def epoch(self, batches: list[Batch], loss: Loss) -> None:
        """Train on all of *batches*, and end the epoch."""

    def scale(self) -> float:
        """The loss scale."""

    def rate(self) -> float:
        """The learning rate."""

    def save(self, path: Path) -> None:
        """Write a checkpoint as the documentation shows it."""

    def load(self, path: Path) -> None:
        """Read what `save` wrote, perhaps under another precision."""


def network(setup: Setup) -> nn.Module:
    """The network that every loop trains."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 1))
    return model.half() if setup.half else model


class TextbookLoop:
    """Torch's AMP recipe, with its advice on accumulation and checkpoints."""

    def __init__(self, setup: Setup) -> None:
        self.model, self._setup = network(setup), setup
        self._optimizer = OPTIMIZERS[setup.optimizer](self.model)
        self._rates = ExponentialLR(self._optimizer, gamma=0.5)
        self._optimizer.register_step_post_hook(lambda *_: self._rates.step())
        dtype = torch.float16 if setup.precision == "fp16" else torch.float32
        self._loop = Textbook(
            self.model, self._optimizer, dtype, scale=setup.scale, max_norm=setup.max_norm
        )

    def epoch(self, batches: list[Batch], loss: Loss) -> None:
        """See `Loop`; a shorter window at the end is stepped too."""
        loop, window = self._loop, self._setup.accumulate

        def forward(x: Tensor) -> Tensor:
            return loop.forward(x).float()

        for number, batch in enumerate(batches, start=1):
            part = loss(forward, batch) / window
            if number % window and number < len(batches):
                loop.scaler.scale(part).backward()
            else:
                loop.update(part)

    def scale(self) -> float:
        """See `Loop`."""
        return self._loop.scaler.get_scale()

    def rate(self) -> float:
        """See `Loop`."""
        return float(self._optimizer.param_groups[0]["lr"])

    def save(self, path: Path) -> None:
        """See `Loop`."""
        saved = {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._loop.scaler.state_dict(),
        }
        torch.save(saved, path)

    def load(self, path: Path) -> None:
        """See `Loop`."""
        saved = torch.load(path, weights_only=True)
        self.model.load_state_dict(saved["model"])
        self._optimizer.load_state_dict(saved["optimizer"])
        self._loop.scaler.load_state_dict(saved["scaler"])


class FabricLoop:
    """Lightning Fabric; on a CPU it is given the scaler and autocast that it uses on CUDA."""

    def __init__(self, setup: Setup) -> None:
        from lightning.fabric import Fabric
        from lightning.fabric.plugins import MixedPrecision

        for name in ("lightning.fabric", "lightning.pytorch"):  # they log each set-up of AMP
            logging.getLogger(name).setLevel(logging.WARNING)
        self.model, self._setup = network(setup), setup
        self._scaler = torch.amp.GradScaler(
            "cpu", init_scale=setup.scale, enabled=setup.precision == "fp16"
        )
        plugins = [MixedPrecision("16-mixed", "cpu", self._scaler)]
        self._fabric = Fabric(
            accelerator="cpu", devices=1, plugins=plugins if setup.precision == "fp16" else []
        )
        raw = OPTIMIZERS[setup.optimizer](self.model)
        self._rates = ExponentialLR(raw, gamma=0.5)
        raw.register_step_post_hook(lambda *_: self._rates.step())
        self._wrapped: Any
        self._optimizer: Any
        self._wrapped, self._optimizer = self._fabric.setup(self.model, raw)

    def epoch(self, batches: list[Batch], loss: Loss) -> None:
        """See `Loop`; a shorter window at the end is stepped too."""
        window = self._setup.accumulate
        for number, batch in enumerate(batches, start=1):
            self._fabric.backward(loss(self._wrapped, batch) / window)
            if number % window and number < len(batches):
                continue
            if self._setup.max_norm is not None:
                self._fabric.clip_gradients(
                    self._wrapped, self._optimizer, max_norm=self._setup.max_norm
                )
            self._optimizer.step()
            self._optimizer.zero_grad()

    def scale(self) -> float:
        """See `Loop`."""
        return self._scaler.get_scale()

    def rate(self) -> float:
        """See `Loop`."""
        return float(self._rates.get_last_lr()[0])

    def save(self, path: Path) -> None:
        """See `Loop`."""
        self._fabric.save(path, {"model": self._wrapped, "optimizer": self._optimizer})

    def load(self, path: Path) -> None:
        """See `Loop`."""
        self._fabric.load(path, {"model": self._wrapped, "optimizer": self._optimizer})


class AccelerateLoop:
    """Hugging Face Accelerate; on a CPU it is given the scaler that it uses on CUDA."""

    def __init__(self, setup: Setup) -> None:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)  # the process has one
        GradientState._reset_state()
        fp16 = setup.precision == "fp16"
        self._accelerator: Any = Accelerator(
            cpu=True,
            mixed_precision="fp16" if fp16 else "no",
            gradient_accumulation_steps=setup.accumulate,
        )
        if fp16:
            self._accelerator.native_amp = True
            self._accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=setup.scale)
        self.model, self._setup = network(setup), setup
        raw = OPTIMIZERS[setup.optimizer](self.model)
        self._wrapped, self._optimizer, self._rates = self._accelerator.prepare(
            self.model, raw, ExponentialLR(raw, gamma=0.5)
        )

    def epoch(self, batches: list[Batch], loss: Loss) -> None:
        """See `Loop`."""
        loader: Any = torch.utils.data.DataLoader(cast("Any", batches), batch_size=None)
        for batch in self._accelerator.prepare(loader):
            with self._accelerator.accumulate(self._wrapped):
                self._accelerator.backward(loss(self._wrapped, batch))
                if self._accelerator.sync_gradients and self._setup.max_norm is not None:
                    self._accelerator.clip_grad_norm_(
                        self._wrapped.parameters(), self._setup.max_norm
                    )
                self._optimizer.step()
                self._rates.step()
                self._optimizer.zero_grad()

    def scale(self) -> float:
        """See `Loop`."""
        return float(self._accelerator.scaler.get_scale())

    def rate(self) -> float:
        """See `Loop`."""
        return float(self._rates.get_last_lr()[0])

    def save(self, path: Path) -> None:
        """See `Loop`."""
        self._accelerator.save_state(path)

    def load(self, path: Path) -> None:
        """See `Loop`."""
        self._accelerator.load_state(path)


class OurLoop:
    """`FP16Trainer`."""

    def __init__(self, setup: Setup) -> None:
        self.model = network(setup)
        optimizer = OPTIMIZERS[setup.optimizer](self.model)
        config = FP16TrainingConfig(
            precision=Precision(setup.precision),
            cpu_half=True,
            loss_scale=setup.scale,
            max_grad_norm=setup.max_norm,
            accumulate=setup.accumulate,
        )
        self._trainer = FP16Trainer(self.model, optimizer, config)
        self._rates = ExponentialLR(optimizer, gamma=0.5)

    def epoch(self, batches: list[Batch], loss: Loss) -> None:
        """See `Loop`."""
        for batch in batches:
            applied = self._trainer.get_stats()["applied_steps"]
            self._trainer.train_batch(batch, loss)
            if self._trainer.get_stats()["applied_steps"] != applied:
                self._rates.step()
        if not self._trainer.at_step_boundary:
            self._trainer.finish_window()

    def scale(self) -> float:
        """See `Loop`."""
        return float(self._trainer.get_stats()["current_scale"])

    def rate(self) -> float:
        """See `Loop`."""
        return float(self._rates.get_last_lr()[0])

    def save(self, path: Path) -> None:
        """See `Loop`."""
        self._trainer.save_checkpoint(path)

    def load(self, path: Path) -> None:
        """See `Loop`."""
        self._trainer.load_checkpoint(path)


LOOPS: dict[str, Callable[[Setup], Loop]] = {
    "torch's recipe": TextbookLoop,
    "Fabric": FabricLoop,
    "Accelerate": AccelerateLoop,
    "FP16Trainer": OurLoop,
}
