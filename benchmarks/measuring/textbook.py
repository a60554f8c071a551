"""The loop of torch's AMP recipe, which benchmarks and tests compare `FP16Trainer` with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

B = TypeVar("B")


@dataclass
class Textbook:
    """Autocast, scale, backward, unscale, clip, step, update.

    Attributes:
        model: Model with float32 parameters.
        optimizer: Optimizer of its parameters.
        dtype: Dtype of the autocast region; float32 for none.
        scale: Initial loss scale of FP16.
        growth_interval: Steps without overflow after which the scale doubles.
        max_norm: Largest norm of the unscaled gradients; None does not clip.
        device: Type of the device, ``cpu`` or ``cuda``.
        scaler: Scaler of torch; disabled unless *dtype* is float16.
    """

    model: nn.Module
    optimizer: Optimizer
    dtype: torch.dtype = torch.float16
    _: KW_ONLY
    scale: float = 65536.0
    growth_interval: int = 2000
    max_norm: float | None = 1.0
    device: str = "cpu"
    scaler: torch.amp.GradScaler = field(init=False)

    def __post_init__(self) -> None:
        """Create the scaler."""
        self.scaler = torch.amp.GradScaler(
            self.device,
            init_scale=self.scale,
            growth_interval=self.growth_interval,
            enabled=self.dtype is torch.float16,
        )

    def forward(self, *inputs: object, **options: object) -> Tensor:
        """What the model returns under autocast, of its dtype."""
        enabled = self.dtype is not torch.float32
        with torch.autocast(self.device, dtype=self.dtype, enabled=enabled):
            output: Tensor = self.model(*inputs, **options)
        return output

    def step(self, batch: B, loss_fn: Callable[[Callable[..., Tensor], B], Tensor]) -> Tensor:
        """Train on *batch*; return the loss that *loss_fn* has computed of `forward`."""
        loss = loss_fn(self.forward, batch)
        self.update(loss)
        return loss

    def update(self, loss: Tensor) -> None:
        """Backpropagate *loss* and update the parameters, unless a gradient is not finite."""
        self.scaler.scale(loss).backward()
        if self.max_norm is not None:
            self.scaler.unscale_(self.optimizer)
            trained = [p for group in self.optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(trained, self.max_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
