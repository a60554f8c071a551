"""What happens between two optimizer steps: statistics, observers, commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from infrastructure.events import Command, PrecisionState, SaveCheckpoint, SetPrecision
from infrastructure.events.event import BaseEvent, Notice, PrecisionChanged, StepStats
from infrastructure.training.distributed.ranks import Ranks
from infrastructure.training.fp16_trainer import FP16Trainer
from infrastructure.training.loop.divergence import GoBack, SafetyNet
from infrastructure.training.loop.lr_schedule import RateSchedule
from infrastructure.training.loop.precision_choice import PrecisionChoice
from infrastructure.training.loop.progress import SavedProgress
from infrastructure.training.loop.statistics import StatsReporter
from infrastructure.training.precision.switch import PinnedPrecisionError


class StepObserver(Protocol):
    """Looks at a training every so many optimizer steps; its time is not the steps' time.

    Attributes:
        interval_steps: Called after every step whose number this divides.
    """

    interval_steps: int

    def observe(self, trainer: FP16Trainer) -> None:
        """Look; change nothing. Every rank is called after the same step.

        Args:
            trainer: At a step boundary.
        """


class StepBoundary:
    """Does what is due after each optimizer step; all ranks do the same.

    Args:
        trainer: At a step boundary whenever a method is called.
        schedule: Of the learning rate, if there is one.
        reporter: Emits the statistics.
        progress: Saves checkpoints.
        safety_net: Reacts to the statistics.
        choice: Settles the wish ``auto``.
        observers: Called in this order.
        ranks: Of which the leader hears commands.
        checkpoint_interval_seconds: Longest time between two checkpoints.
        emit: Takes events.
        commands: Gives those that arrived since the last call.

    Attributes:
        stopped: Whether the training is to end here; a checkpoint is written.
    """

    def __init__(
        self,
        *,
        trainer: FP16Trainer,
        schedule: RateSchedule | None,
        reporter: StatsReporter,
        progress: SavedProgress,
        safety_net: SafetyNet,
        choice: PrecisionChoice,
        observers: Sequence[StepObserver],
        ranks: Ranks,
        checkpoint_interval_seconds: float,
        emit: Callable[[BaseEvent], None],
        commands: Callable[[], Iterable[Command]],
    ) -> None:
        self._trainer, self._schedule = trainer, schedule
        self._reporter, self._progress, self._safety_net = reporter, progress, safety_net
        self._choice, self._observers, self._ranks = choice, observers, ranks
        self._checkpoint_interval_seconds = checkpoint_interval_seconds
        self._emit, self._commands = emit, commands
        self._unheeded: StepStats | None = None
        self.stopped = False

    def after_step(self) -> None:
        """Advance the schedule, report, observe and obey."""
        if self._schedule is not None:
            self._schedule.after_step()
        self._unheeded = self._reporter.after_step(self._progress.epoch) or self._unheeded
        for observer in self._observers:
            if self._trainer.training_steps % observer.interval_steps == 0:
                begun = time.monotonic()
                observer.observe(self._trainer)
                self._reporter.exclude(time.monotonic() - begun)
        for order in self._ranks.agree(self._orders):
            self._obey(order)
            if self.stopped:
                return

    def end_epoch(self) -> None:
        """Report the epoch's last steps; what they demand is done after the next step."""
        self._unheeded = self._reporter.report(self._progress.epoch) or self._unheeded

    def _orders(self) -> list[Command | GoBack]:
        """What the leader wants done now."""
        orders: list[Command | GoBack] = []
        if self._unheeded is not None:
            orders += self._safety_net.heed(self._unheeded)
            self._unheeded = None
        orders += self._commands()
        if self._progress.seconds_since_saved >= self._checkpoint_interval_seconds:
            orders.append(SaveCheckpoint())
        return orders

    def _obey(self, order: Command | GoBack) -> None:
        if isinstance(order, SetPrecision):
            self.set_precision(order.state)
        elif isinstance(order, SaveCheckpoint):
            begun = time.monotonic()
            self._progress.save_or_notice()
            self._reporter.exclude(time.monotonic() - begun)
        elif isinstance(order, GoBack):
            self._reporter.report(self._progress.epoch)  # the losses before do not count again
            self._safety_net.go_back(order.losses)
        else:
            self._stop()

    def set_precision(self, wish: PrecisionState) -> None:
        """Put *wish* in force and tell; where it cannot be in this process, stop."""
        self._reporter.report(self._progress.epoch)  # no window mixes two precisions
        try:
            state = self._trainer.set_precision(self._choice.settle(wish))
        except PinnedPrecisionError as error:
            fields = {"error": str(error), "reason": wish.reason}
            self._emit(Notice(level="warning", event="precision_needs_restart", fields=fields))
            self._stop()
            return
        self._emit(
            PrecisionChanged(
                step=self._trainer.training_steps,
                state=state,
                loss_scale=float(self._trainer.get_stats()["current_scale"]),
            )
        )

    def _stop(self) -> None:
        self._reporter.report(self._progress.epoch)
        self._progress.save()
        self.stopped = True
