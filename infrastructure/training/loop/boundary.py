"""Work between two optimizer steps: statistics, observers, commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from infrastructure.events import Command, PrecisionState, SaveCheckpoint, SetPrecision
from infrastructure.events.event import BaseEvent, Notice, PrecisionChanged, StepStats
from infrastructure.training.distributed import Ranks
from infrastructure.training.fp16_trainer import FP16Trainer
from infrastructure.training.loop.auto_precision import AutoPrecision
from infrastructure.training.loop.divergence import DivergenceHandler, RestoreWeights
from infrastructure.training.loop.lr_schedule import LearningRateSchedule
from infrastructure.training.loop.progress import SavedProgress
from infrastructure.training.loop.statistics import StatsReporter
from infrastructure.training.precision import PinnedPrecisionError
from infrastructure.training.precision.roles import RoleResolver
from infrastructure.training.rounds import Rounds


class StepObserver(Protocol):
    """Observes a training every few optimizer steps; its time does not count as step time.

    Attributes:
        interval_steps: `observe` is called after every step whose number this divides.
    """

    interval_steps: int

    def observe(self, trainer: FP16Trainer) -> None:
        """Observe *trainer*, at a step boundary, without changing it.

        Every rank is called after the same step.
        """


class StepBoundary:
    """Does the work that is due after each optimizer step, the same on all ranks.

    Args:
        trainer: Trainer, at a step boundary at every call.
        roles: Resolves the precision of the job's roles.
        observers: Observers, called in this order.
        ranks: The ranks; rank 0 receives commands.
        checkpoint_interval_seconds: Longest time between two checkpoints.
        commands: Returns the commands that arrived since the last call.

    Attributes:
        stopped: Whether the training must end here; a checkpoint is written if the disk has room.
    """

    def __init__(
        self,
        *,
        trainer: FP16Trainer,
        schedule: LearningRateSchedule | None,
        reporter: StatsReporter,
        progress: SavedProgress,
        divergence: DivergenceHandler,
        rounds: Rounds,
        auto_precision: AutoPrecision,
        roles: RoleResolver,
        observers: Sequence[StepObserver],
        ranks: Ranks,
        checkpoint_interval_seconds: float,
        emit: Callable[[BaseEvent], None],
        commands: Callable[[], Iterable[Command]],
    ) -> None:
        self._trainer, self._schedule = trainer, schedule
        self._reporter, self._progress, self._divergence = reporter, progress, divergence
        self._rounds, self._auto_precision, self._roles = rounds, auto_precision, roles
        self._observers, self._ranks = observers, ranks
        self._checkpoint_interval_seconds = checkpoint_interval_seconds
        self._emit, self._commands = emit, commands
        self._unhandled: StepStats | None = None
        self.stopped = False

    def after_step(self) -> None:
        """Advance the schedule, report, observe, and execute commands."""
        if self._schedule is not None:
            self._schedule.after_step()
        self._unhandled = self._reporter.after_step(self._progress.epoch) or self._unhandled
        for observer in self._observers:
            if self._trainer.training_steps % observer.interval_steps == 0:
                begun = time.monotonic()
                observer.observe(self._trainer)
                self._reporter.exclude(time.monotonic() - begun)
        self.execute_commands()

    def execute_commands(self) -> None:
        """Do what is due, such as a change of precision that has arrived."""
        for action in self._ranks.agree(self._due_actions):
            self._execute(action)
            if self.stopped:
                return

    def end_epoch(self) -> None:
        """Report the epoch's last steps; reactions to them follow after the next step."""
        self._unhandled = self._reporter.report(self._progress.epoch) or self._unhandled

    def _due_actions(self) -> list[Command | RestoreWeights]:
        """Rank 0's decisions at this step."""
        actions: list[Command | RestoreWeights] = []
        if self._unhandled is not None:
            actions += self._divergence.react_to(self._unhandled)
            self._unhandled = None
        begun = time.monotonic()
        actions += self._commands()
        self._reporter.exclude(time.monotonic() - begun)  # a full disk may pause the training
        if self._progress.is_due(self._checkpoint_interval_seconds):
            actions.append(SaveCheckpoint())
        return actions

    def _execute(self, action: Command | RestoreWeights) -> None:
        if isinstance(action, SetPrecision):
            self.set_precision(action.state)
        elif isinstance(action, SaveCheckpoint):
            begun = time.monotonic()
            self._progress.save_good_weights()
            self._reporter.exclude(time.monotonic() - begun)
        elif isinstance(action, RestoreWeights):
            self._reporter.report(self._progress.epoch)  # the losses before do not count again
            self._divergence.restore_weights(action.losses)
            self._rounds.synchronize()
        else:
            self._stop()

    def set_precision(self, wish: PrecisionState) -> None:
        """Put *wish* in force and report it; if this process cannot, stop for a restart."""
        self._reporter.report(self._progress.epoch)  # no window mixes two precisions
        try:
            wish = self._roles.resolve(self._auto_precision.resolve(wish))
            state = self._trainer.set_precision(wish)
        except PinnedPrecisionError as error:
            self._emit(Notice.warning("precision_needs_restart", error, reason=wish.reason))
            self._stop()
            return
        self._divergence.note_precision()
        precisions = self._roles.precisions(state)
        self._rounds.set_precision(precisions)
        self._emit(
            PrecisionChanged(
                step=self._trainer.training_steps,
                state=self._roles.acknowledge(state, precisions),
                loss_scale=float(self._trainer.get_stats()["current_scale"]),
            )
        )

    def _stop(self) -> None:
        self._reporter.report(self._progress.epoch)
        self._progress.save()
        self.stopped = True
