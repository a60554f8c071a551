"""The one training step, for every precision.

Formulas: loss scaling after Micikevicius et al. 2018, "Mixed Precision Training", section 3.2;
scale dynamics after ``torch/amp/grad_scaler.py``; clipping by global norm after Pascanu et al.
2013. Unscaling, clipping and updating are one pass: see `OptimizerStep`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import structlog
import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from infrastructure.agent_contract import Forward
from infrastructure.events import PrecisionState
from infrastructure.training.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.forward import PrecisionForward
from infrastructure.training.loss_scale import LossScale
from infrastructure.training.optimizer_step import OptimizerStep, global_norm
from infrastructure.training.parameters import device_of, float32_parameters
from infrastructure.training.precision import Precision, resolve
from infrastructure.training.step_record import StepReading, StepRecord

B = TypeVar("B")

log = structlog.get_logger()


class FP16Trainer:
    """Steps a model under FP32, FP16 or BF16 by the same lines.

    Parameters and optimizer state are float32 always. Precision is the dtype of an autocast
    region plus a loss scale, so it can change between two optimizer steps and back.

    Args:
        model: On one device, every parameter float32.
        optimizer: Over the model's parameters. ``fused=True`` of torch's Adam, AdamW, SGD and
            Adagrad makes the step free of device reads; any other optimizer costs one a step.
        config: See `FP16TrainingConfig`.

    Attributes:
        precision_state: Requested, effective and the reason.
        forward: The model under the effective precision; see the contract's `Forward`.
        training_steps: Optimizer steps attempted, in every precision.
        fp16_steps: Those attempted under FP16.
        no_gradient_steps: Those for which no parameter had a gradient: nothing was updated.

    Raises:
        ValueError: A parameter that is not float32, parameters on several devices, or none.
    """

    def __init__(
        self, model: Module, optimizer: Optimizer, config: FP16TrainingConfig | None = None
    ) -> None:
        self.config = config or FP16TrainingConfig()
        self.model = model
        self.optimizer = optimizer
        self.device = device_of(model)
        self._parameters = float32_parameters(model, optimizer)
        self._loss_scale = LossScale(self.config, self.device)
        self._record = StepRecord(self.device)
        self._one = torch.ones((), dtype=torch.float32, device=self.device)
        self._optimizer_step = OptimizerStep(optimizer, self._parameters, self.config.max_grad_norm)
        self.training_steps = self.fp16_steps = self.no_gradient_steps = 0
        self._micro_batches = 0
        self._window_loss: Tensor | None = None
        self._last_step_bad: Tensor | None = None
        name = self.config.precision
        self._apply(
            PrecisionState(requested=name.value, effective=name.value, reason="default")
            if self.config.enabled
            else PrecisionState(requested=name.value, effective="fp32", reason="flag")
        )
        if self.precision_state.effective != self.precision_state.requested:
            log.warning("precision_lowered", state=str(self.precision_state))

    # -- precision ---------------------------------------------------------------------------

    def set_precision(self, wish: PrecisionState) -> PrecisionState:
        """Change precision between two optimizer steps.

        Leaving FP16 parks its scale and growth tracker; coming back restores them.

        Returns:
            What is in force now: the wish, held against the hardware.

        Raises:
            RuntimeError: Inside an accumulation window: gradients of two scales would mix.
        """
        if not self.at_step_boundary:
            raise RuntimeError(
                f"precision can change only between optimizer steps; {self._micro_batches} of "
                f"{self.config.accumulate} micro-batches are accumulated: call it after the step"
            )
        return self._apply(wish)

    def _apply(self, wish: PrecisionState) -> PrecisionState:
        self.precision_state = resolve(wish, self.device, cpu_half=self.config.cpu_half)
        self.precision = Precision(self.precision_state.effective)
        self.forward = PrecisionForward(self.model, self.device, self.precision)
        return self.precision_state

    @property
    def last_step_attempted(self) -> bool:
        """Whether the last optimizer step had gradients, be it applied or skipped."""
        return self._last_step_bad is not None

    @property
    def at_step_boundary(self) -> bool:
        """Whether no micro-batch is accumulated."""
        return self._micro_batches == 0

    # -- the step ----------------------------------------------------------------------------

    def training_step(self, batch: B, compute_loss_fn: Callable[[Forward, B], Tensor]) -> Tensor:
        """Compute the loss of *batch*: the model in half precision, the loss in float32.

        Args:
            batch: Handed to *compute_loss_fn* as it is.
            compute_loss_fn: ``(forward, batch)`` to a scalar. Calling ``forward`` runs the model
                under the effective precision and returns float32.

        Returns:
            float32 ``[]``, attached to the graph, not scaled.

        Raises:
            TypeError: *compute_loss_fn* returned no float32 tensor.
            ValueError: The loss is no scalar, or does not depend on the parameters.
        """
        loss = self.forward.compute_loss(compute_loss_fn, batch)
        if not isinstance(loss, Tensor):
            raise TypeError(f"the loss must be a tensor, got {type(loss).__name__}")
        if loss.dtype != torch.float32:
            raise TypeError(
                f"the loss must be float32, got {loss.dtype}: compute it from what forward(...) "
                "returns, which is float32 already"
            )
        if loss.ndim != 0:
            raise ValueError(f"the loss must be a scalar, got shape {tuple(loss.shape)}")
        if not loss.requires_grad:
            raise ValueError("the loss does not depend on the parameters: call forward(...) in it")
        return loss

    def step(self, loss: Tensor) -> None:
        """Backpropagate *loss* and, at the end of an accumulation window, attempt a step.

        Overflow is an outcome, not an error: the update is skipped, the scale backs off, a
        counter on the device goes up. With a fused optimizer nothing here reads the device.

        Args:
            loss: float32 ``[]`` from `training_step`, of one micro-batch.
        """
        if self.precision.scales_loss:
            (loss * self._loss_scale.scale).backward()
        else:
            loss.backward()
        loss = loss.detach()
        self._window_loss = loss if self._window_loss is None else self._window_loss + loss
        self._micro_batches += 1
        if self._micro_batches == self.config.accumulate:
            self.finish_window()

    def finish_window(self) -> None:
        """Attempt a step with the micro-batches accumulated so far; none: do nothing.

        `step` calls it for full windows; call it after the last batch of an epoch. Gradients are
        averaged over the micro-batches that there are.
        """
        if self._window_loss is None:
            return
        loss, count = self._window_loss, self._micro_batches
        self._window_loss, self._micro_batches = None, 0
        self.training_steps += 1
        self.fp16_steps += self.precision is Precision.FP16
        grads = [p.grad for p in self._parameters if p.grad is not None]
        if not grads:
            self.no_gradient_steps += 1
            self._last_step_bad = None
            return
        self._attempt(grads, loss, count)
        for parameter in self._parameters:
            parameter.grad = None

    def _attempt(self, grads: list[Tensor], loss: Tensor, count: int) -> None:
        """One optimizer step from *grads*, the scaled gradients summed over *count* losses."""
        divisor = self._loss_scale.scale if self.precision.scales_loss else None
        if count > 1:
            loss = loss / count
            divisor = self._one * count if divisor is None else divisor * count
        norm = global_norm(grads)
        if divisor is not None:
            norm = norm / divisor  # unscaled
        norm_and_loss = torch.stack((norm, loss))
        bad = norm_and_loss.mul(0.0).ne_(0.0)  # [2] float32: 1 where inf or NaN, else 0
        self._last_step_bad = bad.amax()
        self._optimizer_step(norm, divisor, self._last_step_bad)
        if self.precision.scales_loss:
            self._loss_scale.update(*bad.unbind())
        self._record.add(norm_and_loss)

    def backward_and_step(self, loss: Tensor) -> bool:
        """Run `step`, then wait for the device.

        Returns:
            False if this call's optimizer step was skipped; True otherwise, also where the
            micro-batch was only accumulated.
        """
        self.step(loss)
        return not (
            self.at_step_boundary
            and self._last_step_bad is not None
            and bool(self._last_step_bad.item())
        )

    # -- what happened -----------------------------------------------------------------------

    def start_reading(self) -> Callable[[], StepReading | None]:
        """Start an asynchronous read of what happened since the last one; does not wait.

        Returns:
            A function that gives None until the device has answered.
        """
        return self._record.start_reading(self._scale_in_force())

    def _scale_in_force(self) -> Tensor:
        return self._loss_scale.scale if self.precision.scales_loss else self._one

    def get_stats(self) -> dict[str, float | int | bool | str]:
        """Counters so far; reads the device.

        ``overflow_rate`` is overflows by attempted steps. ``training_steps`` counts attempts;
        ``applied_steps`` those that changed the parameters.
        """
        state = self._record.state_dict()
        overflow = state["overflow_steps"]
        nonfinite = state["nonfinite_loss_steps"]
        return {
            "training_steps": self.training_steps,
            "applied_steps": self.training_steps - overflow - nonfinite - self.no_gradient_steps,
            "overflow_steps": overflow,
            "nonfinite_loss_steps": nonfinite,
            "no_gradient_steps": self.no_gradient_steps,
            "fp16_steps": self.fp16_steps,
            "overflow_rate": overflow / max(1, self.training_steps),
            "fp16_enabled": self.precision is Precision.FP16,
            "current_scale": self._scale_in_force().item(),
            "precision_requested": self.precision_state.requested,
            "precision_effective": self.precision_state.effective,
            "precision_reason": self.precision_state.reason,
        }

    # -- persistence -------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Model, optimizer, scale, growth tracker and counters; reads the device.

        Raises:
            RuntimeError: Inside an accumulation window: half a step cannot be saved.
        """
        if not self.at_step_boundary:
            raise RuntimeError("save between optimizer steps: call finish_window() first")
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loss_scale": self._loss_scale.state_dict(),
            "record": self._record.state_dict(),
            "training_steps": self.training_steps,
            "fp16_steps": self.fp16_steps,
            "no_gradient_steps": self.no_gradient_steps,
            "precision": self.precision.value,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, whatever precision it was saved under.

        The precision in force stays: it is the operator's choice of today.

        Raises:
            ValueError: The state is of another model.
        """
        try:
            self.model.load_state_dict(state["model"])
        except RuntimeError as error:
            raise ValueError(f"the state is of another model: {error}") from error
        self.optimizer.load_state_dict(state["optimizer"])
        self._loss_scale.load_state_dict(state["loss_scale"])
        self._record.load_state_dict(state["record"])
        self.training_steps = state["training_steps"]
        self.fp16_steps = state["fp16_steps"]
        self.no_gradient_steps = state["no_gradient_steps"]
        if state["precision"] != self.precision.value:
            log.warning(
                "checkpoint_of_other_precision", saved=state["precision"], now=self.precision.value
            )

    def restore_weights(self, state: dict[str, Any]) -> None:
        """Take model, optimizer and loss scale from *state*; the counters go on as they are.

        For going back to a good checkpoint when losses have stopped being finite.
        """
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._loss_scale.load_state_dict(state["loss_scale"])
        self._record.forget_consecutive()

    @property
    def last_loss_was_finite(self) -> bool:
        """Whether the last step's loss was finite; reads the device."""
        return self._record.last_loss_was_finite

    def save_checkpoint(self, path: Path | str) -> None:
        """Write the state atomically, with its hash beside it.

        Raises:
            CheckpointError: It could not be written; what stood at *path* still stands.
        """
        write_checkpoint(Path(path), self.state_dict())

    def load_checkpoint(self, path: Path | str) -> None:
        """Restore a checkpoint written under any precision.

        Raises:
            CheckpointError: It is missing, incomplete, corrupt, or of another model.
        """
        state = read_checkpoint(Path(path), self.device)
        try:
            self.load_state_dict(state)
        except (KeyError, ValueError) as error:
            raise CheckpointError(
                Path(path), f"does not fit ({error})", "load it into the model it was saved from"
            ) from error
