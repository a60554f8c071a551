"""The one training step, for every precision, and the operations between two steps.

Formulas: loss scaling after Micikevicius et al. 2018, "Mixed Precision Training", section 3.2;
scale dynamics after ``torch/amp/grad_scaler.py``; clipping by global norm after Pascanu et al.
2013. Unscaling, clipping and updating are one pass: see `OptimizerStep`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import structlog
import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from infrastructure.agent_contract import Forward
from infrastructure.events import PrecisionState
from infrastructure.training.buffer_restore import BufferRestore
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.diagnostics.anomaly import AnomalyDetector
from infrastructure.training.distributed.gradients import RankGradients, is_shared_by_ranks
from infrastructure.training.distributed.modules import is_sharded
from infrastructure.training.evaluation_weights import averaging_optimizers
from infrastructure.training.loss_scale import make_loss_scale
from infrastructure.training.multi_optimizer import wrapped_optimizer
from infrastructure.training.optimizer_step import OptimizerStep, global_norm
from infrastructure.training.overflow_log import OverflowLog
from infrastructure.training.precision import Precision, checked_loss, explain_backward_error
from infrastructure.training.precision.compiled_calls import CompiledCalls, EagerRetry
from infrastructure.training.precision.frozen_halves import frozen_halves
from infrastructure.training.precision.keep_fp32 import keep_in_fp32
from infrastructure.training.precision.switch import PrecisionSwitch
from infrastructure.training.state import TrainerState
from infrastructure.training.step_record import StepReading, StepRecord
from infrastructure.training.trained_parameters import device_of, trained_parameters

B = TypeVar("B")

log = structlog.get_logger()


class FP16Trainer:
    """Steps a model under FP32, FP16 or BF16 by the same lines.

    Trained parameters and optimizer state are always float32. Precision is the dtype of an autocast
    region plus a loss scale, so it can change between two optimizer steps and back.

    Args:
        model: Model on one device. Every parameter is float32, but a frozen one may be float16 or
            bfloat16: FP32 sees it in float32, in a copy that lives as long as a step. Under DDP or
            sharded by FSDP2, all ranks of the group take the same decision in every step; each
            must then call `step` equally often.
        optimizer: Optimizer over parameters of the model, all or some, and no others.
            ``fused=True`` of torch's Adam, AdamW, SGD and Adagrad makes the step free of device
            reads; any other optimizer costs one read per step. `training_step` calls ``train()``
            of an optimizer that has it; call ``eval()`` yourself before you evaluate.
        config: See `FP16TrainingConfig`.
        wish: The precision to begin with; None for the configuration's.
        compiled: Compiles the calls of the model in steps and in `forward`; None for eager ones.

    Attributes:
        config, model, optimizer, compiled: As given.
        device: The model's device.
        record: Counts every step by its outcome.
        state: Saves and restores what a checkpoint holds.

    Raises:
        ValueError: A trained parameter is not float32, the parameters are on several devices,
            there are none, the optimizer holds parameters that are not the model's, or it needs
            a closure or sparse gradients.
        TypeError: *config* or *optimizer* is of another class.
        UnknownModuleError: ``keep_fp32`` names a module that the model does not have.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        config: FP16TrainingConfig | None = None,
        *,
        wish: PrecisionState | None = None,
        compiled: CompiledCalls | None = None,
    ) -> None:
        config = self.config = FP16TrainingConfig() if config is None else config
        if not isinstance(config, FP16TrainingConfig):
            got = type(config).__name__
            raise TypeError(f"config must be an FP16TrainingConfig, got {got}: construct one")
        self.model = model
        self.optimizer = optimizer
        self.compiled = compiled
        self.device = device_of(model)
        self._parameters = trained_parameters(model, optimizer)
        keep_in_fp32(model, config.keep_fp32, self.device)
        self._group_sizes = _sizes(optimizer)
        self._loss_scale = make_loss_scale(config, self.device)
        self._anomalies = AnomalyDetector(model) if config.detect_anomaly else None
        self._backward = self._anomalies.backward if self._anomalies else Tensor.backward
        if compiled is not None and self._anomalies:
            compiled.refuse("detect_anomaly checks every operation of the model")
        if compiled is not None and is_sharded(model):
            compiled.refuse("torch.compile leaves out what FSDP2 shards: use parallel='ddp'")
        self.record = StepRecord(self.device)
        self._one = torch.ones((), dtype=torch.float32, device=self.device)
        self._optimizer_step = OptimizerStep(optimizer, self._parameters, config)
        self._averaging = averaging_optimizers(optimizer)
        self._buffers = BufferRestore(model, self.device)
        self._ranks = (
            RankGradients(model, optimizer, self._parameters, config.accumulate, global_norm)
            if is_shared_by_ranks(model)
            else None
        )
        self._retry = (
            None
            if compiled is None or self._ranks is not None
            else EagerRetry(compiled, self.device, lambda: self.training_steps, self._drop_window)
        )
        self._micro_batches = self._replays = 0
        self._window_loss: Tensor | None = None
        self._skipped: Tensor | None = None
        self._switch = PrecisionSwitch(
            model,
            optimizer,
            self._parameters,
            cpu_half=config.cpu_half,
            wish=wish or config.wish,
            compiled=compiled,
        )
        self._overflow_log = OverflowLog(
            scale=config.loss_scale if self.precision.scales_loss else 1.0,
            enabled=self._ranks is None or self._ranks.is_rank_zero,
        )
        self.state = TrainerState(
            model,
            optimizer,
            switch=self._switch,
            loss_scale=self._loss_scale,
            record=self.record,
            adaptive_clip=self._optimizer_step.adaptive_clip,
        )
        state = self.precision_state
        if state.effective != state.requested and state.reason != "measured":
            log.warning("precision_lowered", state=str(state))
        self._halves = list(frozen_halves(model).values())
        if self._halves:
            numbers = sum(half.numel() for half in self._halves)
            log.info(
                "frozen_half_parameters",
                parameters=len(self._halves),
                mib_more_in_fp32=round(4 * numbers / 2**20, 1),
            )

    # The step.

    def train_batch(
        self, batch: B, compute_loss_fn: Callable[[Forward, B], Tensor], *, replay: bool = False
    ) -> None:
        """Run `training_step` and `step` on *batch*; see there for the arguments.

        Where compiled code cannot be differentiated as the loss asks, the accumulation window is
        taken again eagerly.
        """

        def take() -> None:
            self.step(self.training_step(batch, compute_loss_fn), replay=replay)

        if self._retry is None:
            take()
        else:
            self._retry.take(take, self._micro_batches)

    def _drop_window(self) -> None:
        """Forget the micro-batches accumulated, and restore the buffers from before them."""
        self._window_loss, self._micro_batches, self._replays = None, 0, 0
        self._buffers.close_window(self._one)

    def training_step(self, batch: B, compute_loss_fn: Callable[[Forward, B], Tensor]) -> Tensor:
        """Compute the loss of *batch*: the model in half precision, the loss in float32.

        Step a loss before you compute that of the next optimizer step: a skipped step restores the
        buffers of the newest loss only.

        Args:
            batch: Passed to *compute_loss_fn* unchanged.
            compute_loss_fn: ``(forward, batch)`` to a scalar. Calling ``forward`` runs the model
                under the effective precision and returns float32.

        Returns:
            float32 ``[]``, attached to the graph, not scaled.

        Raises:
            TypeError: *compute_loss_fn* did not return a float32 tensor.
            ValueError: The loss is not a scalar, or does not depend on the parameters.
        """
        if self._micro_batches == 0:
            self._buffers.open_window()
        for optimizer in self._averaging:
            optimizer.train()
        if self._anomalies is not None:
            compute_loss_fn = self._anomalies.instrument(compute_loss_fn)
        return checked_loss(self._switch.forward.compute_loss(compute_loss_fn, batch))

    def step(self, loss: Tensor, *, replay: bool = False) -> None:
        """Backpropagate *loss* and, at the end of an accumulation window, attempt a step.

        Overflow is an outcome, not an error: the update is skipped, the scale backs off, a
        counter on the device goes up. With a fused optimizer nothing here reads the device.

        Args:
            loss: float32 ``[]`` from `training_step`, of one micro-batch.
            replay: The micro-batch belongs to another rank. This rank has run out of its own and
                only takes part in the collectives; the loss gets weight 0.

        Raises:
            RuntimeError: A parameter group was added inside an accumulation window, or the loss
                was backpropagated before.
            TypeError, ValueError: *loss* does not come from `training_step`; see there.
        """
        if _sizes(self.optimizer) != self._group_sizes or any(
            half.requires_grad for half in self._halves
        ):
            self._adopt_new_groups()
        if self._micro_batches == 0:
            self._switch.clear_gradients()
        try:
            if replay:
                loss = loss * 0.0
                self._replays += 1
            scaled = loss * self._loss_scale.scale if self.precision.scales_loss else loss
            self._switch.forward.backward(self._backward, scaled)
        except Exception as error:
            explain_backward_error(error, loss)
            raise
        self._switch.after_backward()
        loss = loss.detach()  # copied below: the caller may change it in place
        window = self._window_loss
        self._window_loss = loss.clone() if window is None else window + loss
        self._micro_batches += 1
        if self._micro_batches == self.config.accumulate:
            self.finish_window()
        elif self._ranks is not None:
            self._ranks.begin_micro_batch(self._micro_batches)

    def _adopt_new_groups(self) -> None:
        self._require_step_boundary("parameter groups can be added")
        with self._switch.float32_parameters():
            self._parameters[:] = trained_parameters(self.model, self.optimizer)
        self._optimizer_step.choose_path()
        self._buffers.find_buffers()
        self._group_sizes = _sizes(self.optimizer)

    def finish_window(self) -> None:
        """Attempt a step with the micro-batches accumulated so far; without any, do nothing.

        `step` calls it for full windows; call it after the last batch of an epoch. Gradients are
        averaged over the micro-batches accumulated, not over ``accumulate``.
        """
        if self._window_loss is None:
            return
        loss, count = self._window_loss, self._micro_batches - self._replays
        if self._ranks is not None:
            self._ranks.end_window(self._micro_batches)
        self._window_loss, self._micro_batches, self._replays = None, 0, 0
        self.record.training_steps += 1
        self.record.fp16_steps += self.precision is Precision.FP16
        grads = [p.grad for p in self._parameters if p.grad is not None]
        if not grads:
            self.record.no_gradient_steps += 1
            self._skipped = None
            self._buffers.close_window(loss.sub(loss).ne_(0.0))
            return
        self._attempt(grads, loss, count)
        self._switch.clear_gradients()
        self._switch.after_step()

    def _attempt(self, grads: list[Tensor], loss: Tensor, count: int) -> None:
        """One optimizer step from *grads*, the scaled gradients summed over *count* losses."""
        divisor = self._loss_scale.scale if self.precision.scales_loss else None
        if self._ranks is not None:
            norm, loss, per_rank = self._ranks.reduce(grads, loss, count)
            divisor = per_rank if divisor is None else divisor * per_rank
        else:
            norm = global_norm(grads)
            if count > 1:
                loss = loss / count
                divisor = self._one * count if divisor is None else divisor * count
        if divisor is not None:
            norm = norm / divisor  # unscaled
        total = norm + loss  # finite exactly if both are
        found_inf = self._skipped = total.sub_(total).ne_(0.0)  # x - x is NaN, or 0
        self._optimizer_step(norm, divisor, found_inf)
        self._buffers.close_window(found_inf)
        self.update_loss_scale(loss, found_inf)
        self.record.add(norm, loss)

    def backward_and_step(self, loss: Tensor) -> bool:
        """Run `step`, then wait for the device; log an overflow.

        Returns:
            False if this call's optimizer step was skipped; True otherwise, also where the
            micro-batch was only accumulated.
        """
        scale = self.scale_in_force.clone()
        self.step(loss)
        skipped = self.last_step_skipped if self.at_step_boundary else None
        if skipped is None or not skipped.item():
            return True
        if self.record.last_loss_was_finite:
            self._log_overflow(scale.item())
        return False

    def _log_overflow(self, scale: float) -> None:
        """Log that the last step overflowed at the loss scale *scale*; reads the device."""
        totals = self.record.state_dict()
        step, overflow = totals["training_steps"], totals["overflow_steps"]
        self._overflow_log.observe(step=step - 1, overflow_steps=overflow - 1, scale=scale)
        after = self.scale_in_force.item()
        self._overflow_log.observe(step=step, overflow_steps=overflow, scale=after)

    @property
    def last_step_attempted(self) -> bool:
        """Whether the last optimizer step had gradients; it may have been applied or skipped."""
        return self._skipped is not None

    @property
    def last_step_skipped(self) -> Tensor | None:
        """1 if the last optimizer step was skipped, 0 if it was applied; float32 ``[]``.

        On the device: an average of the weights can use it without a device read. None if the step
        had no gradients.
        """
        return self._skipped

    # For code that takes the trainer's steps in another way, as CUDA graphs do.

    @property
    def fused_step_unavailable_reason(self) -> str | None:
        """Reason the one-pass optimizer step, which reads nothing, is unavailable, or None."""
        return self._optimizer_step.fused_step_unavailable_reason

    @property
    def is_distributed(self) -> bool:
        """Whether several ranks share the model."""
        return self._ranks is not None

    @property
    def model_cast_requested(self) -> bool:
        """Whether `cast_model_to_fp16` was called: then parameters move between precisions."""
        return self._switch.cast_requested

    @contextmanager
    def recording_into(self, record: StepRecord) -> Iterator[None]:
        """Count the steps taken inside the block in *record* and leave the trainer's own counters.

        A step that raises leaves neither gradients nor an open accumulation window behind.
        """
        previous, skipped = self.record, self._skipped
        self.record = record
        try:
            yield
        finally:
            self.record, self._skipped = previous, skipped
            self._micro_batches, self._replays, self._window_loss = 0, 0, None
            self._buffers.discard()
            for parameter in self.model.parameters():
                parameter.grad = None

    @property
    def scale_in_force(self) -> Tensor:
        """What the loss is multiplied by, float32 ``[]`` on the device; 1 without a loss scale."""
        return self._loss_scale.scale if self.precision.scales_loss else self._one

    def update_loss_scale(self, loss: Tensor, found_inf: Tensor) -> None:
        """Let the loss scale, if one is in force, react to an attempted optimizer step.

        Args:
            loss: float32 ``[]``.
            found_inf: float32 ``[]``: 1 where the gradient norm or *loss* is not finite, else 0.
        """
        if self.precision.scales_loss:
            self._loss_scale.update(found_inf, loss.sub(loss).ne_(0.0))

    def count_step(self, norm: Tensor, loss: Tensor, *, skipped: Tensor) -> None:
        """Count an optimizer step that was taken without calling `step`.

        Args:
            norm: float32 ``[]``, global norm of the unscaled gradients.
            loss: float32 ``[]``.
            skipped: float32 ``[]``: 1 if the step was skipped, 0 if it was applied.
        """
        self.record.training_steps += 1
        self.record.fp16_steps += self.precision is Precision.FP16
        self._skipped = skipped
        self.record.add(norm, loss)

    # Precision, between two optimizer steps.

    @property
    def at_step_boundary(self) -> bool:
        """Whether no micro-batch is accumulated."""
        return self._micro_batches == 0

    @property
    def precision_state(self) -> PrecisionState:
        """Requested, effective and the reason."""
        return self._switch.state

    @property
    def precision(self) -> Precision:
        """The effective precision."""
        return self._switch.precision

    @property
    def forward(self) -> Forward:
        """The model under the effective precision."""
        return self._switch.forward

    def set_precision(self, wish: PrecisionState) -> PrecisionState:
        """Change precision between two optimizer steps.

        Leaving FP16 parks its scale and growth tracker; coming back restores them, or starts from
        the initial scale where FP16 was left with its scale at the floor. The modules that *wish*
        names compute in FP32 from now on, and no others beyond those of the configuration.

        Returns:
            The state now in force: *wish* where the hardware allows it, else FP32.

        Raises:
            RuntimeError: Inside an accumulation window: gradients of two scales would mix.
            PinnedPrecisionError: A `MixedPrecisionPolicy` holds the model to another precision.
            UnknownModuleError: *wish* raises a module that the model does not have.
        """
        self._require_step_boundary("precision can change")
        before = self.precision
        state = self._switch.apply(wish)
        if before is not self.precision:
            self._overflow_log.forget_scale()
            if self.precision.scales_loss:
                self._loss_scale.leave_floor()
        return state

    def cast_model_to_fp16(self) -> None:
        """Hold the model's parameters in FP16 while FP16 is in force, with FP32 masters.

        Saves autocast's copies of the weights; the masters carry the updates. Leaving FP16, and
        every checkpoint, brings the float32 parameters back.

        Raises:
            RuntimeError: Inside an accumulation window, several ranks share the model, or the
                optimizer wraps another one.
        """
        self._require_step_boundary("the model can be cast")
        if wrapped := wrapped_optimizer(self.optimizer):
            raise RuntimeError(
                f"{type(self.optimizer).__name__} wraps {type(wrapped).__name__}, whose state "
                "cannot move to float32 masters: do without cast_model_to_fp16(), which FP16 does "
                "not need"
            )
        if self._ranks is not None:
            raise RuntimeError(
                "several ranks share the model, and their gradients are averaged in float32: for "
                "FP16 copies shard it with fully_shard() and a MixedPrecisionPolicy"
            )
        self._switch.cast_model()

    def _require_step_boundary(self, operation: str) -> None:
        if not self.at_step_boundary:
            raise RuntimeError(
                f"{operation} only between optimizer steps: call finish_window() first; "
                f"{self._micro_batches} of {self.config.accumulate} micro-batches are accumulated"
            )

    # Statistics.

    @property
    def training_steps(self) -> int:
        """Optimizer steps attempted, in every precision."""
        return self.record.training_steps

    @property
    def overflow_steps(self) -> int:
        """Optimizer steps skipped because a gradient was not finite; reads the device."""
        return self.record.state_dict()["overflow_steps"]

    def start_reading(self) -> Callable[[], StepReading | None]:
        """Start to read what happened since the last reading, without waiting for the device.

        Overflows are logged when the reading arrives.

        Returns:
            A function that returns the reading, or None until it has arrived.
        """
        poll, step = self.record.start_reading(self.scale_in_force), self.training_steps

        def poll_and_log() -> StepReading | None:
            reading = poll()
            if reading is not None:
                overflow, scale = reading.overflow_steps, reading.loss_scale
                self._overflow_log.observe(step=step, overflow_steps=overflow, scale=scale)
            return reading

        return poll_and_log

    def get_stats(self) -> dict[str, float | int | bool | str]:
        """Counters so far; reads the device, and logs new overflows.

        Returns:
            ``training_steps`` counts the optimizer steps attempted, in every precision, and
            ``fp16_steps`` those in FP16. By outcome they are ``applied_steps``, which changed the
            parameters, ``overflow_steps``, skipped because a gradient was not finite,
            ``nonfinite_loss_steps``, skipped because the loss was not, and ``no_gradient_steps``.
            ``overflow_rate`` is overflows divided by attempts. ``fp16_enabled`` tells whether FP16
            is in force, and ``current_scale`` is the loss scale, 1 without one.
            ``precision_requested``, ``precision_effective`` and ``precision_reason`` tell what was
            asked for, what runs, and why.
        """
        totals, scale = self.record.stats(), self.scale_in_force.item()
        overflow = int(totals["overflow_steps"])
        self._overflow_log.observe(step=self.training_steps, overflow_steps=overflow, scale=scale)
        return {
            **totals,
            "fp16_enabled": self.precision is Precision.FP16,
            "current_scale": scale,
            "precision_requested": self.precision_state.requested,
            "precision_effective": self.precision_state.effective,
            "precision_reason": self.precision_state.reason,
        }

    # Saving and loading, between two optimizer steps.

    def state_dict(self) -> dict[str, Any]:
        """Model, optimizer, scale, growth tracker and counters; reads the device.

        Of the frozen base under an adapter, the state holds only hashes; see `FrozenBase`.

        Raises:
            RuntimeError: Inside an accumulation window: half a step cannot be saved.
        """
        self._require_step_boundary("the state can be saved")
        self._buffers.settle()
        return self.state.to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned under any precision; the one in force stays.

        Raises:
            RuntimeError: Inside an accumulation window: its gradients belong to other weights.
            ValueError: The state belongs to another model or frozen base, or is not a trainer's.
        """
        self._require_step_boundary("a state can be loaded")
        self.state.load(state)
        self._buffers.discard()
        self._restart_overflow_log()

    def save_checkpoint(self, path: Path | str) -> None:
        """Write the state atomically, with its hash beside it; every rank must call it.

        Raises:
            CheckpointError: It could not be written; an older checkpoint at *path* is kept.
        """
        self._require_step_boundary("the state can be saved")
        self._buffers.settle()
        self.state.save(Path(path))

    def load_checkpoint(self, path: Path | str) -> None:
        """Restore a checkpoint written under any precision, on any number of ranks.

        Checkpoints of the original trainer, with ``model_state_dict`` and ``scaler_state_dict``,
        load too; see `infrastructure.training.checkpoints.original`.

        Raises:
            CheckpointError: It is missing, incomplete, corrupt, or belongs to another model or
                frozen base.
            RuntimeError: Inside an accumulation window: its gradients belong to other weights.
        """
        self._require_step_boundary("a state can be loaded")
        self.state.load_file(Path(path), self.device)
        self._buffers.discard()
        self._restart_overflow_log()

    def _restart_overflow_log(self) -> None:
        step, overflow = self.training_steps, self.record.state_dict()["overflow_steps"]
        self._overflow_log.restart(step=step, overflow_steps=overflow)


def _sizes(optimizer: Optimizer) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]
