"""The one training step, for every precision.

Formulas: loss scaling after Micikevicius et al. 2018, "Mixed Precision Training", section 3.2;
scale dynamics after ``torch/amp/grad_scaler.py``; clipping by global norm after Pascanu et al.
2013. Unscaling, clipping and updating are one pass: see `OptimizerStep`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import structlog
import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from infrastructure.agent_contract import Forward
from infrastructure.events import PrecisionState
from infrastructure.training.between_steps import BetweenSteps
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.cuda_graphs.graphed_steps import GraphedSteps, graph_refusal
from infrastructure.training.cuda_graphs.recorder import CudaRecorder
from infrastructure.training.diagnostics.anomaly import AnomalyDetector
from infrastructure.training.distributed.gradients import RankGradients
from infrastructure.training.optimizer_step import OptimizerStep, global_norm
from infrastructure.training.parameters import device_of, float32_parameters
from infrastructure.training.precision.forward import checked_loss
from infrastructure.training.precision.precision import Precision
from infrastructure.training.precision.switch import PrecisionSwitch
from infrastructure.training.state import TrainerState
from infrastructure.training.step_record import StepRecord
from infrastructure.training.tuning import loss_scale_of

B = TypeVar("B")

log = structlog.get_logger()


class FP16Trainer(BetweenSteps):
    """Steps a model under FP32, FP16 or BF16 by the same lines.

    Parameters and optimizer state are float32 always. Precision is the dtype of an autocast
    region plus a loss scale, so it can change between two optimizer steps and back.

    Args:
        model: On one device, every parameter float32. In DDP or sharded by FSDP2, all ranks of
            the group decide every step alike; each must then call `step` equally often.
        optimizer: Over the model's parameters. ``fused=True`` of torch's Adam, AdamW, SGD and
            Adagrad makes the step free of device reads; any other optimizer costs one a step.
        config: See `FP16TrainingConfig`.
        wish: The precision to begin with; None for the configuration's.

    Attributes:
        graph_refused: Why ``cuda_graph`` is not honoured, or None.

    Raises:
        ValueError: A parameter that is not float32, parameters on several devices, or none.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        config: FP16TrainingConfig | None = None,
        *,
        wish: PrecisionState | None = None,
    ) -> None:
        config = self.config = FP16TrainingConfig() if config is None else config
        if not isinstance(config, FP16TrainingConfig):
            got = type(config).__name__
            raise TypeError(f"config must be an FP16TrainingConfig, got {got}: make one of it")
        self.model = model
        self.optimizer = optimizer
        self.device = device_of(model)
        self._parameters = float32_parameters(model, optimizer)
        self._groups = len(optimizer.param_groups)
        self._loss_scale = loss_scale_of(config, self.device)
        self._anomalies = AnomalyDetector(model) if config.detect_anomaly else None
        self._backward = self._anomalies.backward if self._anomalies else Tensor.backward
        self.record = StepRecord(self.device)
        self._one = torch.ones((), dtype=torch.float32, device=self.device)
        self._optimizer_step = OptimizerStep(optimizer, self._parameters, config)
        self._ranks = RankGradients.of(model, optimizer, self._parameters, config.accumulate)
        self._micro_batches = self._replays = 0
        self._window_loss: Tensor | None = None
        self._last_step_bad: Tensor | None = None
        self._switch = PrecisionSwitch(
            model,
            optimizer,
            self._parameters,
            device=self.device,
            cpu_half=config.cpu_half,
            wish=wish or config.wish,
        )
        self.state = TrainerState(
            model,
            optimizer,
            switch=self._switch,
            loss_scale=self._loss_scale,
            record=self.record,
            adaptive_clip=self._optimizer_step.adaptive_clip,
        )
        self._graphs: GraphedSteps | None = None
        self.graph_refused: str | None = None
        if config.cuda_graph:
            reason = graph_refusal(
                config, self.device, self._optimizer_step.fold_refused, self._ranks is not None
            )
            if reason is None:
                self._graphs = GraphedSteps(self, CudaRecorder(self.device))
            else:
                self.refuse_graphs(reason)
        state = self.precision_state
        if state.effective != state.requested and state.reason != "measured":
            log.warning("precision_lowered", state=str(state))

    @property
    def training_steps(self) -> int:
        """Optimizer steps attempted, in every precision."""
        return self.record.training_steps

    @property
    def last_step_bad(self) -> Tensor | None:
        """float32 ``[]`` on the device: 1 if the last step was skipped, 0 if it was applied.

        None if it had no gradients. An average of the weights can wait for it without a read.
        """
        return self._last_step_bad

    @property
    def last_step_attempted(self) -> bool:
        """Whether the last optimizer step had gradients, be it applied or skipped."""
        return self._last_step_bad is not None

    def train_batch(
        self, batch: B, compute_loss_fn: Callable[[Forward, B], Tensor], *, replay: bool = False
    ) -> None:
        """`training_step` and `step` in one; by a CUDA graph where the configuration wants one.

        Args:
            batch: See `training_step`. For a graph: tensors on the model's device and plain
                values, or dicts, tuples, lists and dataclasses of them.
            compute_loss_fn: See `training_step`. In a graph, what Python does in it is done once.
            replay: See `step`.
        """
        if self._graphs is None:
            self.step(self.training_step(batch, compute_loss_fn), replay=replay)
        else:
            self._graphs.step(batch, compute_loss_fn)

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
        if self._anomalies is not None:
            compute_loss_fn = self._anomalies.watched(compute_loss_fn)
        return checked_loss(self._switch.forward.compute_loss(compute_loss_fn, batch))

    def step(self, loss: Tensor, *, replay: bool = False) -> None:
        """Backpropagate *loss* and, at the end of an accumulation window, attempt a step.

        Overflow is an outcome, not an error: the update is skipped, the scale backs off, a
        counter on the device goes up. With a fused optimizer nothing here reads the device.

        Args:
            loss: float32 ``[]`` from `training_step`, of one micro-batch.
            replay: The micro-batch is another rank's: this rank has none left and only keeps
                step with the others. It counts for nothing.

        Raises:
            RuntimeError: A parameter group was added inside an accumulation window.
        """
        if len(self.optimizer.param_groups) != self._groups:
            self._take_in_new_groups()
        if replay:
            loss = loss * 0.0
            self._replays += 1
        scaled = loss * self._loss_scale.scale if self.precision.scales_loss else loss
        self._backward(scaled)
        self._switch.after_backward()
        loss = loss.detach()  # copied: the caller may go on with it in place
        window = self._window_loss
        self._window_loss = loss.clone() if window is None else window + loss
        self._micro_batches += 1
        if self._micro_batches == self.config.accumulate:
            self.finish_window()
        elif self._ranks is not None:
            self._ranks.begin_micro_batch(self._micro_batches)

    def _take_in_new_groups(self) -> None:
        self._demand_step_boundary("parameter groups can be added")
        with self._switch.float32_parameters():
            self._parameters[:] = float32_parameters(self.model, self.optimizer)
        self._optimizer_step.choose_path()
        self._groups = len(self.optimizer.param_groups)

    def finish_window(self) -> None:
        """Attempt a step with the micro-batches accumulated so far; none: do nothing.

        `step` calls it for full windows; call it after the last batch of an epoch. Gradients are
        averaged over the micro-batches that there are.
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
            self._last_step_bad = None
            return
        self._attempt(grads, loss, count)
        for parameter in self._parameters:
            parameter.grad = None
        self._switch.after_step()

    def _attempt(self, grads: list[Tensor], loss: Tensor, count: int) -> None:
        """One optimizer step from *grads*, the scaled gradients summed over *count* losses."""
        divisor = self._loss_scale.scale if self.precision.scales_loss else None
        if self._ranks is not None:
            norm, loss, per_rank = self._ranks.as_one(grads, loss, count)
            divisor = per_rank if divisor is None else divisor * per_rank
        else:
            norm = global_norm(grads)
            if count > 1:
                loss = loss / count
                divisor = self._one * count if divisor is None else divisor * count
        if divisor is not None:
            norm = norm / divisor  # unscaled
        both = norm + loss
        bad = self._last_step_bad = both.sub_(both).ne_(0.0)  # 1 where inf or NaN, else 0
        self._optimizer_step(norm, divisor, bad)
        if self.precision.scales_loss:
            self._loss_scale.update(bad, loss.sub(loss).ne_(0.0))
        self.record.add(norm, loss)

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

    @contextmanager
    def recording_into(self, record: StepRecord) -> Iterator[None]:
        """Count steps in *record* for a while: they are recorded for a graph, and do nothing yet.

        A step that raises leaves nothing behind.
        """
        own, bad = self.record, self._last_step_bad
        self.record = record
        try:
            yield
        finally:
            self.record, self._last_step_bad = own, bad
            self._micro_batches, self._window_loss = 0, None
            for parameter in self.model.parameters():
                parameter.grad = None

    def count_graphed_step(self, norm: Tensor, loss: Tensor, *, bad: Tensor) -> None:
        """Take note of a step that a graph has taken.

        Args:
            norm: float32 ``[]``, of the unscaled gradients.
            loss: float32 ``[]``.
            bad: See `last_step_bad`.
        """
        self.record.training_steps += 1
        self.record.fp16_steps += self.precision is Precision.FP16
        self._last_step_bad = bad
        self.record.add(norm, loss)
