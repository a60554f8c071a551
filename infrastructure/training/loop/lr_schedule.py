"""The learning-rate schedule beside a trainer that skips steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from infrastructure.agent_contract.training_job import ScheduleCounts
from infrastructure.training.fp16_trainer import FP16Trainer

LAG_STEPS = 16


class RateSchedule:
    """Advances a scheduler after the trainer's steps; steps without gradients never count.

    By ``attempted`` steps, a schedule as long as the run ends with it. By ``applied`` steps, it
    stands still once for every step that was skipped. Whether one was, only the device knows at
    first: the host asks every 16 steps, takes the answer 16 steps later and never stops for it in
    between. So the schedule is right again 32 steps after a skip, and the same in every run.

    Args:
        scheduler: Built on the trainer's optimizer.
        trainer: Whose steps are counted.
        counts: Which steps.
    """

    def __init__(
        self, scheduler: LRScheduler, trainer: FP16Trainer, counts: ScheduleCounts
    ) -> None:
        self._scheduler, self._trainer, self._counts = scheduler, trainer, counts
        self._since_asked = self._skipped = self._to_hold = 0
        self._answer: Callable[[], int] | None = None

    def after_step(self) -> None:
        """Advance, or stand still; call it after every optimizer step."""
        if not self._trainer.last_step_attempted:
            return
        if self._counts == "applied":
            self._since_asked += 1
            if self._since_asked == LAG_STEPS:
                self._ask()
            if self._to_hold:
                self._to_hold -= 1
                return
        self._scheduler.step()

    def _ask(self) -> None:
        if self._answer is not None:
            skipped = self._answer()
            self._to_hold += skipped - self._skipped
            self._skipped = skipped
        self._answer = _copied_to_host(self._trainer.record.skipped_steps())
        self._since_asked = 0

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's state, and what it still owes; waits for the device."""
        return {
            "scheduler": self._scheduler.state_dict(),
            "since_asked": self._since_asked,
            "skipped": self._skipped,
            "to_hold": self._to_hold,
            "answer": self._answer() if self._answer is not None else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._scheduler.load_state_dict(state["scheduler"])
        self._since_asked, self._skipped = state["since_asked"], state["skipped"]
        self._to_hold, answer = state["to_hold"], state["answer"]
        self._answer = None if answer is None else lambda: answer


def _copied_to_host(count: Tensor) -> Callable[[], int]:
    """Start to copy *count*; the result waits until it is there."""
    if count.device.type != "cuda":
        known = int(count)
        return lambda: known
    pinned = torch.empty(count.shape, dtype=count.dtype, pin_memory=True)
    pinned.copy_(count, non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(count.device))

    def result() -> int:
        done.synchronize()
        return int(pinned)

    return result
