"""A learning-rate schedule for a trainer that skips steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from infrastructure.agent_contract.training_job import ScheduleCounts
from infrastructure.training.fp16_trainer import FP16Trainer

LAG_STEPS = 16


class LearningRateSchedule:
    """Advances a scheduler after the trainer's steps; steps without gradients never count.

    With ``attempted`` steps, a schedule as long as the run ends with it. With ``applied`` steps, it
    pauses once for every skipped step. Only the device knows which steps were skipped: the host
    starts a read every 16 steps and uses its result 16 steps later, so that it does not wait. The
    schedule is correct again 32 steps after a skip, and the same in every run.
    """

    def __init__(
        self, scheduler: LRScheduler, trainer: FP16Trainer, counts: ScheduleCounts
    ) -> None:
        self._scheduler, self._trainer, self._counts = scheduler, trainer, counts
        self._steps_since_read = self._skipped = self._pauses = 0
        self._reading: Callable[[], int] | None = None

    def after_step(self) -> None:
        """Advance or pause; call it after every optimizer step."""
        if not self._trainer.last_step_attempted:
            return
        if self._counts == "applied":
            self._steps_since_read += 1
            if self._steps_since_read == LAG_STEPS:
                self._start_read()
            if self._pauses:
                self._pauses -= 1
                return
        self._scheduler.step()

    def _start_read(self) -> None:
        if self._reading is not None:
            skipped = self._reading()
            self._pauses += skipped - self._skipped
            self._skipped = skipped
        self._reading = self._trainer.record.start_reading_skipped()
        self._steps_since_read = 0

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's state and the pauses still due; waits for the device."""
        return {
            "scheduler": self._scheduler.state_dict(),
            "since_asked": self._steps_since_read,
            "skipped": self._skipped,
            "to_hold": self._pauses,
            "answer": self._reading() if self._reading is not None else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._scheduler.load_state_dict(state["scheduler"])
        self._steps_since_read, self._skipped = state["since_asked"], state["skipped"]
        self._pauses, answer = state["to_hold"], state["answer"]
        self._reading = None if answer is None else lambda: answer
