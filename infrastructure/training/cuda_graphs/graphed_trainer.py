"""Whole steps as CUDA graphs: forward, loss, backward, norm, update and scale by one launch.

A graph repeats the kernels of one step on the same memory. So everything that changes from step
to step must lie in tensors that stay in place: the batch, the learning rate, the loss scale.
Everything else that Python decided while the graph was recorded stays decided: a loss function
that counts its calls counts one.

Traps met here: PyTorch's notes on CUDA graphs; pytorch #180090 (autograd nodes remember the
stream of their first step), #161037 (a graph destroyed by the garbage collector while another is
recorded corrupts it), #55562 (loss scales updated in place).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
import torch
from torch import Tensor

from infrastructure.agent_contract import Forward
from infrastructure.torch_internals.autograd_nodes import leaves
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.cuda_graphs.optimizer_settings import GraphedSettings
from infrastructure.training.cuda_graphs.recorder import CudaRecorder, Recorder
from infrastructure.training.cuda_graphs.static_batch import (
    StaticBatch,
    UncopyableBatchError,
    flatten,
)
from infrastructure.training.fp16_trainer import FP16Trainer
from infrastructure.training.inputs import random_state, restore_random_state
from infrastructure.training.step_record import StepRecord

_WARM_UP_STEPS = 3  # ordinary steps: they make optimizer state and libraries' workspaces
_MOST_SHAPES = 8
# Before, a failed recording left random generator and allocator unusable (#176752, #180395).
_SURVIVES_FAILURE = "2.13"

B = TypeVar("B")

log = structlog.get_logger()


def graphs_unavailable_reason(
    config: FP16TrainingConfig,
    device: torch.device,
    fused_step_unavailable_reason: str | None,
    is_distributed: bool,
) -> str | None:
    """Reason none of a trainer's steps can be a CUDA graph, or None."""
    reasons = {
        f"CUDA graphs exist on CUDA only, and the model is on {device}": device.type != "cuda",
        f"the optimizer's step reads the device: {fused_step_unavailable_reason}": (
            fused_step_unavailable_reason is not None
        ),
        "micro-batches are accumulated": config.accumulate > 1,
        "several ranks share the model": is_distributed,
        "detect_anomaly reads the device": config.detect_anomaly,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Graph:
    """A recorded step, its input, and the tensors that hold its outcome."""

    replay: Callable[[], None]
    inputs: StaticBatch
    norm_and_loss: Tensor
    skipped: Tensor


@dataclass(kw_only=True, slots=True)
class _Shape:
    """The steps that one graph can replace."""

    key: tuple[Any, ...]
    seen: int = 0
    graph: _Graph | None = None


class _RecordedStep(StepRecord):
    """Keeps the tensors that hold a recorded step's outcome; counts nothing."""

    norm_and_loss: Tensor | None = None

    def add(self, norm: Tensor, loss: Tensor) -> None:
        """Keep both in one tensor, which a replay overwrites."""
        self.norm_and_loss = torch.stack((norm, loss))


class GraphedTrainer:
    """Takes a trainer's steps by CUDA graphs, one for each precision and shape of batch.

    The modules raised to FP32 belong to the precision.
    Where steps cannot be graphs they are eager, and the log says why (``cuda_graph_refused``).
    The first three steps of a shape run eagerly, then its graph is recorded; so an odd last batch
    of an epoch runs eagerly at first. Learning rates stay numbers for the optimizer and its
    scheduler: the graph reads copies on the device, which are updated when they change. A graph
    leaves no gradients in parameters of others, where an eager step does.

    Args:
        trainer: Trainer whose steps are recorded; everything but `train_batch` stays with it.
        recorder: Recorder to use instead of CUDA's, on any device.

    Attributes:
        refused_reason: Reason every step is eager, or None.
    """

    def __init__(self, trainer: FP16Trainer, recorder: Recorder | None = None) -> None:
        self._trainer = trainer
        self._shapes: list[_Shape] = []
        self._settings = GraphedSettings(trainer.optimizer, trainer.device)
        self._warned = False
        self.refused_reason: str | None = None
        self._recorder: Recorder
        if recorder is not None:
            self._recorder = recorder
        else:
            reason = graphs_unavailable_reason(
                trainer.config,
                trainer.device,
                trainer.fused_step_unavailable_reason,
                trainer.is_distributed,
            )
            if reason is not None:
                self._refuse(reason)
                return
            self._recorder = CudaRecorder(trainer.device)
        trainer.optimizer.register_load_state_dict_post_hook(lambda _: self._discard_graphs())

    def train_batch(
        self, batch: B, compute_loss_fn: Callable[[Forward, B], Tensor], *, replay: bool = False
    ) -> None:
        """Train on *batch*: by a graph, or eagerly where there is none yet.

        Args:
            batch: See `FP16Trainer.training_step`. For a graph: tensors on the model's device and
                plain values, or dicts, tuples, lists and dataclasses of them.
            compute_loss_fn: See `FP16Trainer.training_step`. In a graph, Python code in it runs
                once, when the graph is recorded.
            replay: See `FP16Trainer.step`.
        """
        trainer = self._trainer
        if trainer.model_cast_requested and self.refused_reason is None:
            self._refuse("the model is held in FP16, and its parameters move with every checkpoint")
        if self.refused_reason is not None:
            trainer.train_batch(batch, compute_loss_fn, replay=replay)
            return
        try:
            batch_shape, tensors = flatten(batch, trainer.device)
        except UncopyableBatchError as error:
            self._refuse(str(error))
            trainer.train_batch(batch, compute_loss_fn)
            return
        key = (
            batch_shape,
            trainer.precision,
            trainer.precision_state.modules,
            trainer.model.training,
            compute_loss_fn,
            self._settings.recorded_values(),
        )
        shape = self._shape(key)
        if shape is None:
            trainer.train_batch(batch, compute_loss_fn)
            return
        shape.seen += 1
        if shape.seen <= _WARM_UP_STEPS:
            self._recorder.run(lambda: trainer.train_batch(batch, compute_loss_fn))
            return
        if shape.graph is None:
            try:
                shape.graph = self._record(StaticBatch(batch, tensors), compute_loss_fn)
            except Exception as error:  # an error of the step itself is raised again below
                if torch.__version__ < _SURVIVES_FAILURE:
                    raise RuntimeError(
                        f"a step could not be recorded as a CUDA graph ({error}), which torch "
                        f"{torch.__version__} does not survive: set cuda_graph=False, or use torch "
                        f"{_SURVIVES_FAILURE} or newer"
                    ) from error
                self._refuse(f"{type(error).__name__} while recording: {error}")
                trainer.train_batch(batch, compute_loss_fn)
                return
        self._replay(shape.graph, tensors)

    def _refuse(self, reason: str) -> None:
        """Take every step eagerly from now on, and log why."""
        self.refused_reason = reason
        log.warning("cuda_graph_refused", reason=reason)

    def _discard_graphs(self) -> None:
        """Drop every graph: the memory that they read and write is no longer in use."""
        if self._shapes and self._trainer.device.type == "cuda":
            torch.cuda.synchronize(self._trainer.device)  # none may run while it is destroyed
        self._shapes.clear()

    def _shape(self, key: tuple[Any, ...]) -> _Shape | None:
        for shape in self._shapes:
            if shape.key == key:
                return shape
        if len(self._shapes) < _MOST_SHAPES:
            self._shapes.append(_Shape(key=key))
            return self._shapes[-1]
        if not self._warned:
            self._warned = True
            log.warning(
                "cuda_graph_refused",
                reason=f"more than {_MOST_SHAPES} shapes of batches, loss functions or settings of "
                "the optimizer: the others run eagerly",
            )
        return None

    def _replay(self, graph: _Graph, tensors: list[Tensor]) -> None:
        graph.inputs.fill(tensors)
        self._settings.update_learning_rates()
        graph.replay()
        self._trainer.count_step(*graph.norm_and_loss.clone().unbind(), skipped=graph.skipped)

    def _record(
        self, inputs: StaticBatch, compute_loss_fn: Callable[[Forward, Any], Tensor]
    ) -> _Graph:
        """Record a step without taking it; on failure everything is as it was."""
        trainer, optimizer = self._trainer, self._trainer.optimizer
        held: list[tuple[Tensor, Tensor | None]] = []

        def step() -> None:
            loss = trainer.training_step(inputs.batch, compute_loss_fn)
            for leaf in leaves(loss):  # a graph would add to memory that its owner gives away
                held.append((leaf, leaf.grad))
                leaf.grad = None
            trainer.step(loss)

        known, random = set(optimizer.state), random_state(trainer.device)
        outcome = _RecordedStep(trainer.device)
        torch.clear_autocast_cache()
        try:
            with self._settings.on_device(), trainer.recording_into(outcome):
                replay = self._recorder.record(step)
                skipped = trainer.last_step_skipped
            if outcome.norm_and_loss is None or skipped is None:
                raise RuntimeError("the step has no gradients")
            if set(optimizer.state) != known:
                raise RuntimeError("a parameter got its first gradient, and has no state yet")
        except BaseException:
            for parameter in set(optimizer.state) - known:
                del optimizer.state[parameter]
            restore_random_state(random, trainer.device)
            raise
        finally:
            for leaf, gradient in held:
                leaf.grad = gradient
        return _Graph(
            replay=replay, inputs=inputs, norm_and_loss=outcome.norm_and_loss, skipped=skipped
        )
