"""Reactions to overflow at the floor of the loss scale and to losses that stay non-finite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infrastructure.events import PrecisionState, SetPrecision
from infrastructure.events.event import BaseEvent, Notice, PartStats, StepStats
from infrastructure.training.checkpoints import CheckpointFolder
from infrastructure.training.parts import PartsTrainer, Trainer
from infrastructure.training.precision import Precision


class TrainingDivergedError(ArithmeticError):
    """The training cannot continue from its own numbers.

    Attributes:
        in_fp32: Whether it diverged in FP32, so that neither a rollback nor a retry can help.
    """

    def __init__(self, event: str, remedy: str, *, in_fp32: bool = False) -> None:
        as_well = ". This happened in FP32, so another attempt would not help" if in_fp32 else ""
        super().__init__(f"training diverged: {event}{as_well}. Remedy: {remedy}")
        self.in_fp32 = in_fp32


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreWeights:
    """Decision for every rank: restore the weights of the last good checkpoint.

    Attributes:
        losses: Number of non-finite losses in a row.
        parts: Names of the parts that had them, if the job has several.
    """

    losses: int
    parts: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """What has happened, for a person."""
        return f"{self.losses} losses in a row{_of_parts(self.parts)} were not finite"


class DivergenceHandler:
    """Applies ``floor_policy`` and ``nonfinite_loss_patience`` of the trainer's configuration.

    Args:
        checkpoints: Folder of the last good weights.
    """

    def __init__(
        self,
        trainer: Trainer,
        checkpoints: CheckpointFolder,
        emit: Callable[[BaseEvent], None],
    ) -> None:
        self._trainer, self._checkpoints, self._emit = trainer, checkpoints, emit
        self._restored_step: int | None = None
        self._fp32_since: int | None = None  # step; None in a half precision
        self._was_half = False

    def note_precision(self) -> None:
        """Take note of the trainer's precision; call it after every change."""
        in_fp32 = self._trainer.precision is Precision.FP32
        self._was_half |= not in_fp32
        if in_fp32 != (self._fp32_since is not None):
            self._fp32_since = self._trainer.training_steps if in_fp32 else None

    def _made_in_fp32(self, last_steps: int) -> bool:
        """Whether so many *last_steps* were made in FP32."""
        begun = self._fp32_since
        return begun is not None and self._trainer.training_steps - begun >= last_steps

    def react_to(self, stats: StepStats) -> list[SetPrecision | RestoreWeights]:
        """Decide what the steps that *stats* reports require.

        Raises:
            TrainingDivergedError: The floor policy is ``halt``.
        """
        config = self._trainer.config
        actions: list[SetPrecision | RestoreWeights] = []
        at_floor = [
            part
            for part in stats.parts or (stats,)
            if part.overflow and part.loss_scale <= config.min_loss_scale
        ]
        if at_floor and stats.precision == "fp16" and config.floor_policy != "skip":
            whose = _of_parts([part.name for part in at_floor if isinstance(part, PartStats)])
            if config.floor_policy == "halt":
                raise TrainingDivergedError(
                    f"gradients{whose} overflow with the loss scale at its floor, "
                    f"{stats.loss_scale:g}",
                    "train in FP32, or fix the cause of the infinite gradients",
                )
            event = f"gradients{whose} still overflow: training continues in FP32"
            self._emit(Notice.warning("loss_scale_floor", event))
            requested = self._trainer.precision_state.requested
            fp32 = PrecisionState(requested=requested, effective="fp32", reason="floor_policy")
            actions.append(SetPrecision(state=fp32))
        losses, patience = stats.consecutive_nonfinite_losses, config.nonfinite_loss_patience
        if losses >= patience:
            parts = stats.parts_with_nonfinite_losses(patience)
            actions.append(RestoreWeights(losses=losses, parts=parts))
        return actions

    def require_progress(self) -> None:
        """Check that the training changed the model; reads the device.

        Raises:
            TrainingDivergedError: Steps were attempted, and none was applied.
        """
        parts = self._trainer.parts if isinstance(self._trainer, PartsTrainer) else {}
        for name, part in parts.items():
            self._require_progress_of(f"part {name!r}", part.trainer)
        if not parts:
            self._require_progress_of("the model", self._trainer)

    def _require_progress_of(self, what: str, trainer: Trainer) -> None:
        stats = trainer.get_stats()
        if stats["training_steps"] and not stats["applied_steps"]:
            raise TrainingDivergedError(
                f"none of {stats['training_steps']} steps changed {what} "
                f"({stats['nonfinite_loss_steps']} losses were not finite, "
                f"{stats['overflow_steps']} steps overflowed, {stats['no_gradient_steps']} had no "
                "gradient)",
                "look for NaN or extreme values in the data, and check what the loss depends on",
                in_fp32=self._made_in_fp32(1),
            )

    def restore_weights(self, why: RestoreWeights) -> None:
        """Restore the weights of the last good checkpoint and continue with the next batch.

        Raises:
            TrainingDivergedError: There is no such checkpoint, or it was restored before.
        """
        event = why.reason
        remedy = "look for NaN or extreme values in the data, or lower the learning rate"
        in_fp32 = self._made_in_fp32(why.losses)
        if self._restored_step is not None:
            raise TrainingDivergedError(
                f"{event}, again after the weights of step {self._restored_step} were restored",
                remedy,
                in_fp32=in_fp32,
            )
        newest = self._checkpoints.newest(
            self._trainer.state.layout("trainer/"),
            lambda error: self._emit(Notice.warning("checkpoint_unreadable", error)),
        )
        if newest is None:
            raise TrainingDivergedError(
                f"{event}, and there is no checkpoint to restore",
                remedy,
                in_fp32=in_fp32 and not self._was_half,  # or FP32 may do better from the start
            )
        path, state = newest[0], newest[1]["trainer"]
        self._trainer.state.restore_weights(state)
        self._restored_step = state["record"]["training_steps"]
        restored = f"{event}; restored the weights of {path}"
        self._emit(Notice.warning("weights_restored", restored))


def _of_parts(names: Sequence[str]) -> str:
    """``" of part 'critic'"``; empty without *names*."""
    if not names:
        return ""
    return f" of part{'s' * (len(names) > 1)} {' and '.join(map(repr, names))}"
