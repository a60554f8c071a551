"""Work between two optimizer steps, the same on all ranks: statistics, observers, commands."""

from __future__ import annotations

import time

from infrastructure.events import Command, PrecisionState, SaveCheckpoint, SetPrecision
from infrastructure.events.event import Notice, PrecisionChanged
from infrastructure.training.loop.divergence import RestoreWeights
from infrastructure.training.loop.training import Training
from infrastructure.training.precision import PinnedPrecisionError


def after_step(training: Training) -> None:
    """Advance the schedule, report, observe, and execute commands."""
    trainer, reporter = training.trainer, training.reporter
    if training.schedule is not None:
        training.schedule.after_step()
    training.unhandled = reporter.after_step(training.progress.epoch) or training.unhandled
    for observer in training.observers:
        if trainer.training_steps % observer.interval_steps == 0:
            begun = time.monotonic()
            observer.observe(trainer)
            reporter.exclude(time.monotonic() - begun)
    execute_commands(training)


def execute_commands(training: Training) -> None:
    """Do what is due, such as a change of precision that has arrived."""
    for action in training.ranks.agree(lambda: _due_actions(training)):
        _execute(training, action)
        if training.stopped:
            return


def end_epoch(training: Training) -> None:
    """Report the epoch's last steps, whose reactions follow after the next step, and evaluate."""
    progress, reporter = training.progress, training.reporter
    training.unhandled = reporter.report(progress.epoch) or training.unhandled
    evaluate(training)


def evaluate(training: Training) -> None:
    """Evaluate the model as it is; the time does not count as step time."""
    begun = time.monotonic()
    training.evaluations.evaluate()
    training.reporter.exclude(time.monotonic() - begun)


def _due_actions(training: Training) -> list[Command | RestoreWeights]:
    """Rank 0's decisions at this step."""
    actions: list[Command | RestoreWeights] = []
    if training.unhandled is not None:
        actions += training.divergence.react_to(training.unhandled)
        training.unhandled = None
    begun = time.monotonic()
    actions += training.env.commands()
    training.reporter.exclude(time.monotonic() - begun)  # a full disk may pause the training
    if training.progress.is_due(training.env.options.checkpoint_interval_seconds):
        actions.append(SaveCheckpoint())
    return actions


def _execute(training: Training, action: Command | RestoreWeights) -> None:
    progress, reporter = training.progress, training.reporter
    if isinstance(action, SetPrecision):
        set_precision(training, action.state)
    elif isinstance(action, SaveCheckpoint):
        begun = time.monotonic()
        progress.save_good_weights()
        reporter.exclude(time.monotonic() - begun)
    elif isinstance(action, RestoreWeights):
        reporter.report(progress.epoch)  # the losses before do not count again
        training.divergence.restore_weights(action.losses)
        training.rounds.synchronize()
    else:
        _stop(training)


def set_precision(training: Training, wish: PrecisionState) -> None:
    """Decide on *wish*, put that in force and report it; if it cannot be, stop for a restart."""
    trainer, emit = training.trainer, training.env.emit
    training.reporter.report(training.progress.epoch)  # no window mixes two precisions
    try:
        state = trainer.set_precision(training.precision.decide(wish))
    except PinnedPrecisionError as error:
        emit(Notice.warning("precision_needs_restart", error, reason=wish.reason))
        _stop(training)
        return
    training.divergence.note_precision()
    precisions, acknowledged = training.precision.of_roles(state)
    training.rounds.set_precision(precisions)
    emit(
        PrecisionChanged(
            step=trainer.training_steps,
            state=acknowledged,
            loss_scale=float(trainer.get_stats()["current_scale"]),
        )
    )


def _stop(training: Training) -> None:
    training.reporter.report(training.progress.epoch)
    training.progress.save()
    training.stopped = True
