"""Reads the step's tensors without making the device wait."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from infrastructure.training.loss_scale import LossScale


class StepReading:
    """Sums finite losses on the device and copies the lot to the host when asked."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._loss_sum = torch.zeros((), dtype=torch.float32, device=device)
        self._nonfinite_before = torch.zeros((), dtype=torch.int64, device=device)
        self._nan = torch.full((), float("nan"), device=device)
        self._grad_norm = self._nan
        self._steps = 0

    def add(self, loss: Tensor, grad_norm: Tensor) -> None:
        """Take note of one attempted step; both float32 ``[]`` on the device."""
        self._loss_sum += loss.nan_to_num(0.0, 0.0, 0.0)
        self._grad_norm = grad_norm
        self._steps += 1

    def start(self, counters: LossScale, scale: Tensor) -> Callable[[], dict[str, float] | None]:
        """See `FP16Trainer.read_window`."""
        nonfinite = counters.nonfinite_loss_steps
        finite_steps = self._steps - (nonfinite - self._nonfinite_before)
        values = torch.stack(
            [
                counters.overflow_steps.double(),
                nonfinite.double(),
                scale.double(),
                (self._loss_sum / finite_steps).double(),  # 0 / 0 is the NaN we want
                self._grad_norm.double(),
            ]
        )
        self.restart(counters)
        return _copy_to_host(values)

    def restart(self, counters: LossScale) -> None:
        """Begin a new window at the *counters* of now."""
        self._loss_sum.zero_()
        self._nonfinite_before.copy_(counters.nonfinite_loss_steps)
        self._grad_norm, self._steps = self._nan, 0


def _copy_to_host(values: Tensor) -> Callable[[], dict[str, float] | None]:
    names = ("overflow_steps", "nonfinite_loss_steps", "loss_scale", "loss", "grad_norm")
    if values.device.type != "cuda":
        reading = dict(zip(names, values.tolist(), strict=True))
        return lambda: reading
    pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    pinned.copy_(values, non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(values.device))

    def read() -> dict[str, float] | None:
        return dict(zip(names, pinned.tolist(), strict=True)) if done.query() else None

    return read
