"""Runs a training from its first step, or its newest checkpoint, to its last evaluation.

In a process group every rank runs this. Rank 0 alone receives commands, emits events, decides and
evaluates; all ranks carry out its decisions after the same step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sized

from infrastructure.events.event import Notice
from infrastructure.training.distributed import RankBatch
from infrastructure.training.evaluation_weights import use_evaluation_weights
from infrastructure.training.inputs import random_state, restore_random_state, to_device
from infrastructure.training.loop.boundary import (
    after_step,
    apply_precision,
    end_epoch,
    evaluate,
    execute_commands,
)
from infrastructure.training.loop.options import TrainingResult
from infrastructure.training.loop.training import Training
from infrastructure.training.parts import updates_done
from infrastructure.training.precision.keep_fp32 import release


def run(training: Training) -> TrainingResult:
    """Train until the last epoch has been evaluated, or until the training must stop.

    Raises: See `train`.
    """
    trainer, progress = training.trainer, training.progress
    try:
        apply_precision(training, training.first)
        shares = _begin_round(training) if _has_epochs_left(training) else None
        while shares is not None and not training.stopped:
            share = next(shares, None)
            if share is not None:
                _take_step(training, share)
            elif not trainer.at_step_boundary:
                trainer.finish_window()
            else:
                shares = _begin_next_round(training)
                continue
            if trainer.at_step_boundary:
                after_step(training)
    finally:
        training.profile.finish()  # training may end before all profile_steps are done
        release(training.job.model)  # for its author, who may save or export it whole
    if not training.stopped:
        training.divergence.require_progress()
        if training.evaluations.last is None:  # the run was resumed after its last epoch
            evaluate(training)
        use_evaluation_weights(*training.optimizers)
        training.evaluations.restore_best()
    return TrainingResult(
        outcome="stopped" if training.stopped else "done",
        evaluation=training.evaluations.last,
        steps=trainer.training_steps,
        epochs=progress.epoch,
        stats=trainer.get_stats(),
    )


def _take_step(training: Training, share: RankBatch) -> None:
    """Train on this rank's batch; its optimizer step may be that of a later batch."""
    telemetry, reporter = training.telemetry, training.reporter
    batch = to_device(share.batch, training.env.device)
    if training.env.batch_observer is not None:
        training.env.batch_observer.keep(share.batch)
    if telemetry is not None and not share.replay:
        before = telemetry.seconds
        telemetry.before_step(training.trainer, batch)
        if telemetry.seconds > before:
            reporter.exclude(telemetry.seconds - before)
    training.stepper.train_batch(batch, training.job.loss, replay=share.replay)
    training.progress.batch += share.taken
    reporter.count_samples(batch, share.taken)


def _begin_next_round(training: Training) -> Iterator[RankBatch] | None:
    """End the round, and the epoch after its last; None after the last epoch."""
    progress = training.progress
    progress.round, progress.batch = progress.round + 1, 0
    if progress.round == training.rounds.per_epoch:
        progress.epoch, progress.round = progress.epoch + 1, 0
        end_epoch(training)
        if not _has_epochs_left(training):
            return None
    return _begin_round(training)


def _has_epochs_left(training: Training) -> bool:
    epoch, epochs = training.progress.epoch, training.job.epochs
    reason = training.early_stop.reason
    if reason and epoch < epochs:
        if not training.trainer.record.last_loss_was_finite:
            return True  # its steps are skipped: restoring weights, or failing, comes first
        fields = {"reason": reason, "epoch": str(epoch), "epochs": str(epochs)}
        training.env.emit(Notice(event="training_stopped_early", fields=fields))
    return epoch < epochs and not reason


def _begin_round(training: Training) -> Iterator[RankBatch]:
    """Return this rank's share of the batches that remain in the round."""
    if training.stopped:
        return iter(())
    trainer, progress, rounds = training.trainer, training.progress, training.rounds
    env, ranks, reporter = training.env, training.ranks, training.reporter
    number = progress.epoch * rounds.per_epoch + progress.round
    begun = time.monotonic()
    batches = rounds.begin(number)
    if rounds.generates:
        if rounds.generated is not None and env.observe_round is not None:
            env.observe_round(rounds.generated, trainer.training_steps)
        reporter.exclude(time.monotonic() - begun)
        execute_commands(training)  # they may have waited for as long
    if isinstance(batches, Sized):
        ranks.require_equal_length(len(batches))
        micro_batches = trainer.config.accumulate * ranks.count
        before = updates_done(trainer) - progress.batch // micro_batches
        per_round = -(-len(batches) // micro_batches)
        reporter.total_steps = training.kind.total_steps(per_round, number, before)
    trainer.model.train()
    random = random_state(env.device)
    shares = ranks.shard_batches(batches, progress.batch)
    restore_random_state(random, env.device)
    return shares
