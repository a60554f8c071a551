"""Work between two optimizer steps, the same on all ranks: statistics, observers, commands."""

from __future__ import annotations

import time

from infrastructure.events import Command, SaveCheckpoint, SetPrecision
from infrastructure.events.event import Notice, PrecisionChanged
from infrastructure.training.evaluation_weights import evaluation_weights
from infrastructure.training.loop.divergence import RestoreWeights
from infrastructure.training.loop.precision_decision import DecidedPrecision
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
    with evaluation_weights(*training.optimizers):
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
        apply_precision(training, training.precision.decide(action.state))
    elif isinstance(action, SaveCheckpoint):
        begun = time.monotonic()
        progress.save_good_weights()
        reporter.exclude(time.monotonic() - begun)
    elif isinstance(action, RestoreWeights):
        reporter.report(progress.epoch)  # the losses before do not count again
        training.divergence.restore_weights(action)
        training.rounds.synchronize()
    else:
        _stop(training)


def apply_precision(training: Training, decided: DecidedPrecision) -> None:
    """Put *decided* in force and report it; if the model cannot change, stop for a restart."""
    trainer, emit = training.trainer, training.env.emit
    training.reporter.report(training.progress.epoch)  # no window mixes two precisions
    try:
        trainer.set_precision(decided.state)
    except PinnedPrecisionError as error:
        emit(Notice.warning("precision_needs_restart", error, reason=decided.state.reason))
        _stop(training)
        return
    training.divergence.note_precision()
    training.rounds.set_precision(decided.roles)
    emit(
        PrecisionChanged(
            step=trainer.training_steps,
            state=decided.state,
            loss_scale=float(trainer.get_stats()["current_scale"]),
        )
    )


def _stop(training: Training) -> None:
    training.reporter.report(training.progress.epoch)
    training.progress.save()
    training.stopped = True
