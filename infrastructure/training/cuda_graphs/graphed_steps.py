"""Whole steps as CUDA graphs: forward, loss, backward, norm, update and scale by one launch.

A graph repeats the kernels of one step on the same memory. So whatever changes from step to step
must lie in tensors that stay where they are: the batch, the learning rate, the loss scale. All
else that Python decided while the graph was recorded is decided for good: a loss function that
counts its calls counts one.

Traps met here: PyTorch's notes on CUDA graphs; pytorch #180090 (autograd nodes remember the
stream of their first step), #161037 (a graph destroyed by the garbage collector while another is
recorded spoils it), #55562 (loss scales updated in place).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
import torch
from torch import Tensor

from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.cuda_graphs.optimizer_settings import GraphedSettings
from infrastructure.training.cuda_graphs.recorder import Recorder
from infrastructure.training.cuda_graphs.static_batch import StaticBatch, UnboundBatchError, flatten
from infrastructure.training.random_state import random_state, restore_random_state
from infrastructure.training.step_record import StepRecord

if TYPE_CHECKING:
    from infrastructure.training.fp16_trainer import FP16Trainer

_WARM_UP_STEPS = 3  # real ones: they make optimizer state and libraries' workspaces
_MOST_SHAPES = 8
# Before, a failed recording left random generator and allocator unusable (#176752, #180395).
_SURVIVES_FAILURE = "2.13"

log = structlog.get_logger()


def graph_refusal(
    config: FP16TrainingConfig, device: torch.device, fold_refused: str | None, spread: bool
) -> str | None:
    """Why no step can be a CUDA graph, or None.

    Args:
        config: Of the trainer.
        device: Of the model.
        fold_refused: Why the optimizer's step reads the device, if it does.
        spread: Whether several ranks share the model.
    """
    reasons = {
        f"CUDA graphs exist on CUDA only, and the model is on {device}": device.type != "cuda",
        f"the optimizer's step reads the device: {fold_refused}": fold_refused is not None,
        "micro-batches are accumulated": config.accumulate > 1,
        "the model is spread over ranks": spread,
        "detect_anomaly reads the device": config.detect_anomaly,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Graph:
    """A recorded step, its input, and where it leaves its outcome."""

    replay: Callable[[], None]
    inputs: StaticBatch
    norm_and_loss: Tensor
    bad: Tensor


@dataclass(kw_only=True, slots=True)
class _Shape:
    """Steps that one graph can stand for."""

    key: tuple[Any, ...]
    seen: int = 0
    graph: _Graph | None = None


class _Outcome(StepRecord):
    """Keeps what a recorded step leaves, counts nothing."""

    norm_and_loss: Tensor | None = None

    def add(self, norm: Tensor, loss: Tensor) -> None:
        """Take note of where the step leaves them."""
        self.norm_and_loss = torch.stack((norm, loss))


class GraphedSteps:
    """Takes the trainer's steps by graphs, one for each precision and shape of batch.

    The first three steps of a shape run eagerly, then its graph is recorded; so an odd last batch
    of an epoch runs eagerly at first. Learning rates stay numbers to the optimizer and its
    scheduler: the graph reads copies on the device, which follow when they change.

    Args:
        trainer: Its step is recorded.
        recorder: Of CUDA graphs.
    """

    def __init__(self, trainer: FP16Trainer, recorder: Recorder) -> None:
        self._trainer, self._recorder = trainer, recorder
        self._shapes: list[_Shape] = []
        self._settings = GraphedSettings(trainer.optimizer, trainer.device)
        self._warned = False
        trainer.optimizer.register_load_state_dict_post_hook(lambda _: self.forget())

    def forget(self) -> None:
        """Drop every graph: what they read and write lies elsewhere now."""
        if self._shapes and self._trainer.device.type == "cuda":
            torch.cuda.synchronize(self._trainer.device)  # none may run while it is destroyed
        self._shapes.clear()

    def step(self, batch: Any, compute_loss: Callable[..., Tensor]) -> None:
        """Train on *batch*: by a graph, or eagerly where there is none yet."""
        trainer = self._trainer
        try:
            batch_shape, tensors = flatten(batch, trainer.device)
        except UnboundBatchError as error:
            trainer.refuse_graphs(str(error))
            trainer.train_batch(batch, compute_loss)
            return
        key = (
            batch_shape,
            trainer.precision,
            trainer.model.training,
            compute_loss,
            self._settings.fixed(),
        )
        shape = self._shape(key)
        if shape is None:
            trainer.step(trainer.training_step(batch, compute_loss))
            return
        shape.seen += 1
        if shape.seen <= _WARM_UP_STEPS:
            self._recorder.beside(lambda: trainer.step(trainer.training_step(batch, compute_loss)))
            return
        if shape.graph is None:
            try:
                shape.graph = self._recorded(StaticBatch(batch, tensors), compute_loss)
            except Exception as error:  # if it was not the recording's fault, it comes again below
                if torch.__version__ < _SURVIVES_FAILURE:
                    raise RuntimeError(
                        f"a step could not be recorded as a CUDA graph ({error}), which torch "
                        f"{torch.__version__} does not survive: set cuda_graph=False, or use torch "
                        f"{_SURVIVES_FAILURE} or newer"
                    ) from error
                trainer.refuse_graphs(f"{type(error).__name__} while recording: {error}")
                trainer.train_batch(batch, compute_loss)
                return
        self._repeat(shape.graph, tensors)

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

    def _repeat(self, graph: _Graph, tensors: list[Tensor]) -> None:
        graph.inputs.fill(tensors)
        self._settings.follow()
        graph.replay()
        self._trainer.count_graphed_step(*graph.norm_and_loss.clone().unbind(), bad=graph.bad)

    def _recorded(self, inputs: StaticBatch, compute_loss: Callable[..., Tensor]) -> _Graph:
        """Record a step, which does nothing yet; on failure all is as it was."""
        trainer, optimizer = self._trainer, self._trainer.optimizer
        if any(parameter.grad is not None for parameter in trainer.model.parameters()):
            raise RuntimeError("gradients are left over from outside the trainer")
        known, random = set(optimizer.state), random_state(trainer.device)
        outcome = _Outcome(trainer.device)
        torch.clear_autocast_cache()
        try:
            with self._settings.on_device(), trainer.recording_into(outcome):
                replay = self._recorder.record(
                    lambda: trainer.step(trainer.training_step(inputs.batch, compute_loss))
                )
                bad = trainer.last_step_bad
            if outcome.norm_and_loss is None or bad is None:
                raise RuntimeError("the step has no gradients")
            if set(optimizer.state) != known:
                raise RuntimeError("a parameter had its first gradient, so its state is not made")
        except BaseException:
            for parameter in set(optimizer.state) - known:
                del optimizer.state[parameter]
            restore_random_state(random, trainer.device)
            raise
        return _Graph(replay=replay, inputs=inputs, norm_and_loss=outcome.norm_and_loss, bad=bad)
