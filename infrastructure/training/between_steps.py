"""What may be done with a trainer between two optimizer steps: all of it but the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog
import torch
from torch import Tensor

from infrastructure.agent_contract import Forward
from infrastructure.events import PrecisionState
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.cuda_graphs.graphed_steps import GraphedSteps
from infrastructure.training.distributed.gradients import RankGradients
from infrastructure.training.loss_scale import LossScale
from infrastructure.training.precision.precision import Precision
from infrastructure.training.precision.switch import PrecisionSwitch
from infrastructure.training.state import TrainerState
from infrastructure.training.step_record import StepReading, StepRecord

log = structlog.get_logger()


class BetweenSteps:
    """Changes of precision, statistics, saving and loading; `FP16Trainer` adds the step.

    Attributes:
        config: The trainer's.
        device: Of the model.
        record: Counts every step by what became of it.
        state: Saves and restores what a checkpoint holds.
    """

    config: FP16TrainingConfig
    device: torch.device
    record: StepRecord
    state: TrainerState
    _switch: PrecisionSwitch
    _loss_scale: LossScale
    _ranks: RankGradients | None
    _one: Tensor
    _micro_batches: int
    _graphs: GraphedSteps | None
    graph_refused: str | None

    @property
    def at_step_boundary(self) -> bool:
        """Whether no micro-batch is accumulated."""
        return self._micro_batches == 0

    def set_precision(self, wish: PrecisionState) -> PrecisionState:
        """Change precision between two optimizer steps.

        Leaving FP16 parks its scale and growth tracker; coming back restores them, or begins anew
        where FP16 was left at the floor of its scale. Returns what is in force now: the wish, held
        against the hardware.

        Raises:
            RuntimeError: Inside an accumulation window: gradients of two scales would mix.
            PinnedPrecisionError: A `MixedPrecisionPolicy` holds the model to another precision.
        """
        self._demand_step_boundary("precision can change")
        before = self.precision
        state = self._switch.apply(wish)
        if self.precision.scales_loss and before is not self.precision:
            self._loss_scale.leave_floor()
        return state

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

    def cast_model_to_fp16(self) -> None:
        """Hold the model's parameters in FP16 while FP16 is in force, with FP32 masters.

        Saves autocast's copies of the weights; the masters carry the updates. Leaving FP16, and
        every checkpoint, brings the float32 parameters back.

        Raises:
            RuntimeError: Inside an accumulation window, or several ranks share the model.
        """
        self._demand_step_boundary("the model can be cast")
        if self._ranks is not None:
            raise RuntimeError(
                "the model is spread over ranks, whose gradients are averaged in float32: for "
                "FP16 copies shard it with fully_shard() and a MixedPrecisionPolicy"
            )
        if self._graphs is not None:
            self.refuse_graphs(
                "the model is held in FP16, and its masters move with every checkpoint"
            )
        self._switch.cast_model()

    def refuse_graphs(self, reason: str) -> None:
        """Take every step eagerly from now on, and log why."""
        self._graphs, self.graph_refused = None, reason
        log.warning("cuda_graph_refused", reason=reason)

    def _demand_step_boundary(self, what: str) -> None:
        if not self.at_step_boundary:
            raise RuntimeError(
                f"{what} only between optimizer steps: call finish_window() first; "
                f"{self._micro_batches} of {self.config.accumulate} micro-batches are accumulated"
            )

    def start_reading(self) -> Callable[[], StepReading | None]:
        """Start to read what happened since the last reading; ask the result until it is there."""
        return self.record.start_reading(self._scale_in_force())

    def _scale_in_force(self) -> Tensor:
        return self._loss_scale.scale if self.precision.scales_loss else self._one

    def get_stats(self) -> dict[str, float | int | bool | str]:
        """Counters so far; reads the device.

        ``overflow_rate`` is overflows by attempted steps. ``training_steps`` counts attempts;
        ``applied_steps`` those that changed the parameters.
        """
        return {
            **self.record.stats(),
            "fp16_enabled": self.precision is Precision.FP16,
            "current_scale": self._scale_in_force().item(),
            **{f"precision_{name}": value for name, value in asdict(self.precision_state).items()},
        }

    def state_dict(self) -> dict[str, Any]:
        """Model, optimizer, scale, growth tracker and counters; reads the device.

        Raises:
            RuntimeError: Inside an accumulation window: half a step cannot be saved.
        """
        self._demand_step_boundary("the state can be saved")
        return self.state.to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, whatever precision it was saved under.

        The precision in force stays: it is the operator's choice of today.

        Raises:
            RuntimeError: Inside an accumulation window: its gradients are of other weights.
            ValueError: The state is of another model, or of no trainer.
        """
        self._demand_step_boundary("a state can be loaded")
        self.state.load(state)

    def save_checkpoint(self, path: Path | str) -> None:
        """Write the state atomically, with its hash beside it; every rank must call it.

        Raises:
            CheckpointError: It could not be written; what stood at *path* still stands.
        """
        self._demand_step_boundary("the state can be saved")
        self.state.save(Path(path))

    def load_checkpoint(self, path: Path | str) -> None:
        """Restore a checkpoint written under any precision, on any number of ranks.

        Raises:
            CheckpointError: It is missing, incomplete, corrupt, or of another model.
            RuntimeError: Inside an accumulation window: its gradients are of other weights.
        """
        self._demand_step_boundary("a state can be loaded")
        self.state.load_file(Path(path), self.device)
