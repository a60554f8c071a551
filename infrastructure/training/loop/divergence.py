"""What a training does when its own numbers say that it cannot go on like this."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from infrastructure.events import PrecisionState, SetPrecision
from infrastructure.events.event import BaseEvent, Notice, StepStats
from infrastructure.training.checkpoints.folder import CheckpointFolder
from infrastructure.training.fp16_trainer import FP16Trainer


class TrainingDivergedError(ArithmeticError):
    """The numbers leave nothing to train on.

    Args:
        what: What happened.
        remedy: What to do about it.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"training diverged: {what}. Remedy: {remedy}")


@dataclass(frozen=True, kw_only=True, slots=True)
class GoBack:
    """An order to every rank: take the weights of the last good checkpoint.

    Attributes:
        losses: How many in a row were not finite.
    """

    losses: int


class SafetyNet:
    """Reacts to overflow at the floor of the loss scale and to losses gone for good.

    Args:
        trainer: Its configuration holds the policies.
        checkpoints: Where the last good weights lie.
        emit: Takes events.
    """

    def __init__(
        self,
        trainer: FP16Trainer,
        checkpoints: CheckpointFolder,
        emit: Callable[[BaseEvent], None],
    ) -> None:
        self._trainer, self._checkpoints, self._emit = trainer, checkpoints, emit
        self._went_back_at: int | None = None

    def heed(self, stats: StepStats) -> list[SetPrecision | GoBack]:
        """What the steps that *stats* reports demand.

        Raises:
            TrainingDivergedError: The policy is to halt.
        """
        config = self._trainer.config
        orders: list[SetPrecision | GoBack] = []
        at_floor = stats.precision == "fp16" and stats.loss_scale <= config.min_loss_scale
        if at_floor and stats.overflow and config.floor_policy != "skip":
            if config.floor_policy == "halt":
                raise TrainingDivergedError(
                    f"gradients overflow with the loss scale at its floor, {stats.loss_scale:g}",
                    "train in FP32, or mend what makes the gradients infinite",
                )
            self._notice("loss_scale_floor", "gradients still overflow: going on in FP32")
            requested = self._trainer.precision_state.requested
            fp32 = PrecisionState(requested=requested, effective="fp32", reason="floor_policy")
            orders.append(SetPrecision(state=fp32))
        if stats.consecutive_nonfinite_losses >= config.nonfinite_loss_patience:
            orders.append(GoBack(losses=stats.consecutive_nonfinite_losses))
        return orders

    def demand_progress(self) -> None:
        """Refuse a training that changed nothing; reads the device.

        Raises:
            TrainingDivergedError: Steps were attempted and none was applied.
        """
        stats = self._trainer.get_stats()
        if stats["training_steps"] and not stats["applied_steps"]:
            raise TrainingDivergedError(
                f"none of {stats['training_steps']} steps changed the model "
                f"({stats['nonfinite_loss_steps']} losses were not finite, "
                f"{stats['overflow_steps']} steps overflowed, {stats['no_gradient_steps']} had no "
                "gradient)",
                "look for NaN or absurd values in the data, or at what the loss depends on",
            )

    def go_back(self, losses: int) -> None:
        """Take the weights of the last good checkpoint and go on with the next batch.

        Raises:
            TrainingDivergedError: There is no such checkpoint, or going back has not helped.
        """
        what = f"{losses} losses in a row were not finite"
        remedy = "look for NaN or absurd values in the data, or lower the learning rate"
        if self._went_back_at is not None:
            raise TrainingDivergedError(
                f"{what}, again after going back to the checkpoint of step {self._went_back_at}",
                remedy,
            )
        newest = self._checkpoints.newest(
            self._trainer.state.layout("trainer/"),
            lambda error: self._notice("checkpoint_unreadable", str(error)),
        )
        if newest is None:
            raise TrainingDivergedError(f"{what}, and there is no checkpoint to go back to", remedy)
        path, state = newest[0], newest[1]["trainer"]
        self._trainer.state.restore_weights(state)
        self._went_back_at = state["record"]["training_steps"]
        self._notice("went_back_to_checkpoint", f"{what}; now at the weights of {path}")

    def _notice(self, event: str, error: str) -> None:
        self._emit(Notice(level="warning", event=event, fields={"error": error}))
