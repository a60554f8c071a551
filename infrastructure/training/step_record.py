"""The outcome of each step, counted on the device and read without making it wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

_FOLD_EVERY = 64  # steps; bounds the memory of a caller who never reads


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReading:
    """The totals, and the steps since the last reading, as read from the device.

    Attributes:
        training_steps: Optimizer steps attempted so far.
        overflow_steps: Steps so far with a finite loss and a gradient norm that was not finite.
        nonfinite_loss_steps: Steps so far whose loss was not finite.
        consecutive_nonfinite_losses: Number of the latest steps, in a row, whose loss was not
            finite.
        loss_scale: Scale in force.
        loss: Mean of the finite losses since the last reading; NaN if there was none.
        grad_norm: Norm of the last step since then, unscaled, before clipping; NaN if there was
            none.
        parts: Readings of the parts of a job that has several, by name.
    """

    training_steps: int
    overflow_steps: int
    nonfinite_loss_steps: int
    consecutive_nonfinite_losses: int
    loss_scale: float
    loss: float
    grad_norm: float
    parts: Mapping[str, StepReading] = field(default_factory=dict)

    @property
    def totals(self) -> tuple[int, int, int]:
        """Steps so far: attempted, skipped by an overflow, skipped by a non-finite loss."""
        return self.training_steps, self.overflow_steps, self.nonfinite_loss_steps


class StepRecord:
    """Keeps each step's norm and loss on the device and adds them to totals in bulk.

    Only `state_dict`, `stats` and `last_loss_was_finite` wait for the device.

    Attributes:
        training_steps: Optimizer steps attempted, in every precision.
        fp16_steps: Steps attempted under FP16.
        no_gradient_steps: Steps in which no parameter had a gradient, so nothing was updated.
    """

    def __init__(self, device: torch.device) -> None:
        self.training_steps = self.fp16_steps = self.no_gradient_steps = 0
        self._recent: list[Tensor] = []  # norm, loss, norm, loss ...
        self._overflow_steps = torch.zeros((), dtype=torch.int64, device=device)
        self._nonfinite_loss_steps = torch.zeros((), dtype=torch.int64, device=device)
        self._consecutive = torch.zeros((), dtype=torch.int64, device=device)
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._finite_losses = torch.zeros((), dtype=torch.int64, device=device)
        self._nan = torch.full((), float("nan"), device=device)
        self._grad_norm = self._nan

    def add(self, norm: Tensor, loss: Tensor) -> None:
        """Record an attempted step.

        Args:
            norm: float32 ``[]``, global norm of the unscaled gradients.
            loss: float32 ``[]``.
        """
        self._recent += (norm, loss)
        if len(self._recent) == 2 * _FOLD_EVERY:
            self._fold()

    def _fold(self) -> None:
        if not self._recent:
            return
        recent_N2 = torch.stack(self._recent).view(-1, 2)
        norm_N, loss_N = recent_N2.unbind(1)
        self._recent.clear()
        self._grad_norm = norm_N[-1]
        if recent_N2.device.type == "cpu" and np.isfinite(recent_N2.numpy()).all():
            self._consecutive.zero_()  # what the general case below comes to
            self._loss_sum += loss_N.contiguous().sum()
            self._finite_losses += len(loss_N)
            return
        isfinite_N = loss_N.isfinite()
        self._overflow_steps += (isfinite_N & ~norm_N.isfinite()).sum()
        self._nonfinite_loss_steps += (~isfinite_N).sum()
        step_N = torch.arange(1, len(isfinite_N) + 1, device=isfinite_N.device)
        last_finite = (step_N * isfinite_N).amax()
        self._consecutive.mul_(last_finite == 0).add_(len(isfinite_N) - last_finite)
        self._loss_sum += torch.where(isfinite_N, loss_N, 0.0).sum()
        self._finite_losses += isfinite_N.sum()

    def start_reading(self, loss_scale: Tensor) -> Callable[[], StepReading | None]:
        """Start a read and a new window; see `FP16Trainer.start_reading`."""
        self._fold()
        loss = self._loss_sum / self._finite_losses  # 0 / 0 gives the NaN that is wanted
        values = torch.stack(
            [
                value.double()
                for value in (
                    self._overflow_steps,
                    self._nonfinite_loss_steps,
                    self._consecutive,
                    loss_scale,
                    loss,
                    self._grad_norm,
                )
            ]
        )
        self._start_window()
        copy, steps = _HostCopy(values), self.training_steps

        def poll() -> StepReading | None:
            numbers = copy.poll()
            return None if numbers is None else _as_reading(steps, numbers)

        return poll

    def _start_window(self) -> None:
        self._loss_sum.zero_()
        self._finite_losses.zero_()
        self._grad_norm = self._nan

    def start_reading_skipped(self) -> Callable[[], int]:
        """Start to read how many steps so far were skipped; the result waits for the number."""
        self._fold()
        copy = _HostCopy((self._overflow_steps + self._nonfinite_loss_steps).reshape(1))
        return lambda: int(copy.wait()[0])

    def reset_consecutive(self) -> None:
        """Restart the count of non-finite losses in a row."""
        self._fold()
        self._consecutive.zero_()

    @property
    def last_loss_was_finite(self) -> bool:
        """Whether the last step's loss was finite; reads the device."""
        self._fold()
        return not self._consecutive.item()

    def stats(self) -> dict[str, float | int | bool | str]:
        """The totals and numbers derived from them; see `FP16Trainer.get_stats`."""
        totals = self.state_dict()
        overflow, nonfinite = totals["overflow_steps"], totals["nonfinite_loss_steps"]
        applied = self.training_steps - overflow - nonfinite - self.no_gradient_steps
        rate = overflow / max(1, self.training_steps)
        return {**totals, "applied_steps": applied, "overflow_rate": rate}

    def state_dict(self) -> dict[str, int]:
        """The totals as plain numbers."""
        self._fold()
        return {
            "training_steps": self.training_steps,
            "fp16_steps": self.fp16_steps,
            "no_gradient_steps": self.no_gradient_steps,
            "overflow_steps": int(self._overflow_steps.item()),
            "nonfinite_loss_steps": int(self._nonfinite_loss_steps.item()),
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore what `state_dict` returned, with an empty window."""
        self.training_steps = state["training_steps"]
        self.fp16_steps = state["fp16_steps"]
        self.no_gradient_steps = state["no_gradient_steps"]
        self._recent.clear()
        self._consecutive.zero_()
        self._overflow_steps.fill_(state["overflow_steps"])
        self._nonfinite_loss_steps.fill_(state["nonfinite_loss_steps"])
        self._start_window()


def _as_reading(steps: int, numbers: list[float]) -> StepReading:
    overflow, nonfinite, consecutive, loss_scale, loss, grad_norm = numbers
    return StepReading(
        training_steps=steps,
        overflow_steps=int(overflow),
        nonfinite_loss_steps=int(nonfinite),
        consecutive_nonfinite_losses=int(consecutive),
        loss_scale=loss_scale,
        loss=loss,
        grad_norm=grad_norm,
    )


class _HostCopy:
    """An asynchronous copy of a tensor ``[N]`` from the device to the host."""

    def __init__(self, values: Tensor) -> None:
        self._numbers: list[float] | None = None
        if values.device.type != "cuda":
            self._numbers = values.tolist()
            return
        self._pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        self._pinned.copy_(values, non_blocking=True)
        self._done = torch.cuda.Event()
        self._done.record(torch.cuda.current_stream(values.device))

    def poll(self) -> list[float] | None:
        """The values, or None while the copy is under way."""
        if self._numbers is None and self._done.query():
            self._numbers = self._pinned.tolist()
        return self._numbers

    def wait(self) -> list[float]:
        """The values, once the copy has finished."""
        if self._numbers is None:
            self._done.synchronize()
            self._numbers = self._pinned.tolist()
        return self._numbers
