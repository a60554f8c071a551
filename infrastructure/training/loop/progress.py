"""The position of a training in its data, saved in checkpoints and restored from them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from infrastructure.events.event import BaseEvent, CheckpointSaved, Notice, Resumed
from infrastructure.training.checkpoints import CheckpointError, CheckpointFolder
from infrastructure.training.distributed import Ranks
from infrastructure.training.inputs import random_state, restore_random_state, seed_generators
from infrastructure.training.loop.early_stop import EarlyStop
from infrastructure.training.loop.lr_schedule import LearningRateSchedule
from infrastructure.training.parts import Trainer
from infrastructure.training.rounds import Rounds

_MOST_DOUBLINGS = 5  # of the time between two tries to write: 8 minutes by default


class SavedProgress:
    """The position in the data, saved together with trainer and schedule.

    Args:
        schedule: Learning-rate schedule to save and restore, if any.
        early_stop: Saved and restored too.
        ranks: The ranks; each calls every method.
        rounds: Source of the batches, saved and restored too.
        seed: Seed for a resumed training whose number of ranks has changed.

    Attributes:
        epoch: Epochs finished.
        round: Rounds of the current epoch finished.
        batch: Batches taken from the current round.
        largest_fp32_loss: Largest FP32 loss of the frozen batch, over all attempts.
    """

    def __init__(
        self,
        *,
        trainer: Trainer,
        schedule: LearningRateSchedule | None,
        early_stop: EarlyStop,
        rounds: Rounds,
        checkpoints: CheckpointFolder,
        ranks: Ranks,
        seed: int,
        emit: Callable[[BaseEvent], None],
    ) -> None:
        self._trainer, self._schedule, self._rounds = trainer, schedule, rounds
        self._early_stop = early_stop
        self._checkpoints, self._ranks = checkpoints, ranks
        self._seed, self._emit = seed, emit
        self.epoch = self.round = self.batch = 0
        self.largest_fp32_loss = 0.0
        self._saved_at = time.monotonic()
        self._failures = 0  # to write, since the last checkpoint

    def is_due(self, interval_seconds: float) -> bool:
        """Whether the last try to save, or the start, was so long ago.

        The interval doubles with each failure, up to 32 times the given one.
        """
        wait = interval_seconds * 2.0 ** min(self._failures, _MOST_DOUBLINGS)
        return time.monotonic() - self._saved_at >= wait

    def record_fp32_loss(self, loss: float) -> None:
        """Keep *loss* if it is finite and the largest so far."""
        if math.isfinite(loss):
            self.largest_fp32_loss = max(self.largest_fp32_loss, abs(loss))

    def save(self) -> None:
        """Write a checkpoint; if that fails, emit a notice and keep the earlier ones."""
        try:
            self._save()
        except CheckpointError as error:
            self._saved_at, self._failures = time.monotonic(), self._failures + 1
            self._emit(Notice.warning("checkpoint_not_saved", error))

    def _save(self) -> None:
        begun = time.monotonic()
        state = {
            "trainer": self._trainer.state_dict(),
            "schedule": self._schedule.state_dict() if self._schedule else None,
            "epoch": self.epoch,
            "round": self.round,
            "batch": self.batch,
            "rounds": self._rounds.state_dict(),
            "largest_fp32_loss": self.largest_fp32_loss,
            "early_stop": self._early_stop.state_dict(),
            "random": self._ranks.gather(random_state(self._trainer.device)),
        }
        path, size = self._checkpoints.save(self._trainer.training_steps, state)
        self._saved_at, self._failures = time.monotonic(), 0
        self._emit(
            CheckpointSaved(
                step=self._trainer.training_steps,
                path=str(path),
                size_bytes=size,
                seconds=self._saved_at - begun,
            )
        )

    def save_good_weights(self) -> None:
        """Call `save` unless the last loss was not finite."""
        if self._trainer.record.last_loss_was_finite:
            self.save()

    def resume(self) -> None:
        """Restore the newest readable checkpoint; without one, do nothing.

        Raises:
            CheckpointError: It belongs to another job.
        """
        newest = self._checkpoints.newest(
            self._trainer.state.layout("trainer/"),
            lambda error: self._emit(Notice.warning("checkpoint_unreadable", error)),
        )
        if newest is None:
            return
        path, state = newest
        try:
            self._load(state)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                path, f"does not fit this job ({error})", "delete the run's checkpoints"
            ) from error
        self._emit(Resumed(step=self._trainer.training_steps, path=str(path)))

    def _load(self, state: dict[str, Any]) -> None:
        self._trainer.load_state_dict(state["trainer"])
        if self._schedule is not None and state["schedule"] is not None:
            self._schedule.load_state_dict(state["schedule"])
        self.epoch, self.batch = state["epoch"], state["batch"]
        self.round = state.get("round", 0)  # older checkpoints lack it, and the next ones
        self.largest_fp32_loss = state.get("largest_fp32_loss", 0.0)
        if (rounds := state.get("rounds")) is not None:
            self._rounds.load_state_dict(rounds)
        if (early_stop := state.get("early_stop")) is not None:
            self._early_stop.load_state_dict(early_stop)
        rank, steps = self._ranks.rank, self._trainer.training_steps
        if len(state["random"]) == self._ranks.count:
            restore_random_state(state["random"][rank], self._trainer.device)
        else:  # another number of ranks: new random streams for all
            seed_generators(self._seed + rank + 1_000_003 * steps)
