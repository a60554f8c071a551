"""The evaluation after each epoch: what it measures, keeps and tells."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.nn import Module

from infrastructure.agent_contract import Evaluation, Job
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events.event import BaseEvent, Evaluated, Notice
from infrastructure.training.checkpoints import BestEpoch
from infrastructure.training.distributed import DistributedModel, Ranks
from infrastructure.training.loop.early_stop import EarlyStop
from infrastructure.training.loop.progress import SavedProgress
from infrastructure.training.precision import Precision, PrecisionForward
from infrastructure.training.rounds import Rounds, kind_of


class EpochEvaluations:
    """Evaluates a training's model in FP32, because models are published in FP32.

    Args:
        job: Job that is trained.
        model: Its model, which the ranks share.
        ranks: Ranks; rank 0 evaluates for all of them.
        device: Device of the model.
        rounds: The training's batches.
        first_batch: Batch whose loss is kept for comparisons of other precisions.
        progress: Epochs finished, saved in checkpoints.
        early_stop: Is told of every evaluation after the warm-up.
        best_epoch: Keeps the weights of the best epoch after the warm-up; None to keep none.
        emit: Function that receives the events.

    Attributes:
        last: The last evaluation; after `restore_best` that of the best epoch; None before the
            first.
    """

    def __init__(
        self,
        *,
        job: Job,
        model: DistributedModel,
        ranks: Ranks,
        device: torch.device,
        rounds: Rounds,
        first_batch: Batch,
        progress: SavedProgress,
        early_stop: EarlyStop,
        best_epoch: BestEpoch | None,
        emit: Callable[[BaseEvent], None],
    ) -> None:
        self._kind = kind_of(job)
        self._job, self._model, self._ranks, self._device = job, model, ranks, device
        self._rounds, self._first_batch, self._progress = rounds, first_batch, progress
        self._early_stop, self._best_epoch, self._emit = early_stop, best_epoch, emit
        self._save_error: OSError | None = None  # since the best epoch was last saved
        self.last: Evaluation | None = None

    def evaluate(self) -> None:
        """Evaluate the model as the last epoch left it, and emit the result.

        Raises:
            TypeError, ValueError: The job's function returned no `Evaluation`.
        """
        self._model.update_plain(self._ranks, self._device)
        if self._ranks.is_rank_zero:
            self.last = self._evaluate_plain(self._model.plain)
        self.last = self._ranks.broadcast(self.last)
        if self.last is not None and self._trained_beyond_warm_up():
            self._early_stop.note(self.last, self._progress.epoch)

    def restore_best(self) -> None:
        """Give rank 0's model the weights of the best epoch, if they are kept and undamaged.

        The last weights stay if the disk refused better ones than it holds; a notice tells that.
        """
        if self._best_epoch is None or not self._ranks.is_rank_zero:
            return
        if self._save_error is not None and not self._best_epoch.keeps_better_than(self.last):
            self._emit(
                Notice.warning(
                    "last_weights_used",
                    self._save_error,
                    reason="no epoch that is better than the last could be saved",
                )
            )
            return
        best, last = self._best_epoch.restore(self._model.plain), self.last
        if best is not None and (last is None or best.primary == last.primary):
            self.last = best  # an earlier release kept the selection loss alone

    def _evaluate_plain(self, model: Module) -> Evaluation:
        began_at, begun = time.time(), time.monotonic()
        forward = PrecisionForward(model, self._device, Precision.FP32)
        model.eval()
        with torch.no_grad():
            with forward.without_autocast():
                evaluation = self._with_round_metrics(_checked(self._job.evaluate(forward)))
            baseline = forward.compute_loss(self._job.loss, self._first_batch).item()
        self._progress.record_fp32_loss(baseline)
        if self._best_epoch is not None and self._trained_beyond_warm_up():
            self._save_if_better(self._best_epoch, evaluation, model)
        self._emit(
            Evaluated(
                epoch=self._progress.epoch,
                metrics=evaluation.metrics,
                primary=evaluation.primary,
                higher_is_better=evaluation.higher_is_better,
                fp32_baseline_loss=baseline,
                began_at=began_at,
                seconds=time.monotonic() - begun,
            )
        )
        return evaluation

    def _save_if_better(self, best: BestEpoch, evaluation: Evaluation, model: Module) -> None:
        """Save the weights of a better epoch; if that fails, the next better one is tried."""
        try:
            best.save_if_better(evaluation, model)
        except OSError as error:
            if self._save_error is None:
                self._emit(
                    Notice.warning(
                        "best_epoch_not_saved",
                        error,
                        path=str(best.path),
                        consequence="the training goes on and saves the next better epoch",
                        remedy="free space there, or permit writing",
                    )
                )
            self._save_error = error
        else:
            if best.evaluation is evaluation:
                self._save_error = None

    def _with_round_metrics(self, evaluation: Evaluation) -> Evaluation:
        if not self._trained_beyond_warm_up():
            return evaluation
        metrics = self._kind.round_metrics(self._rounds.batches)
        return replace(evaluation, metrics={**metrics, **evaluation.metrics})

    def _trained_beyond_warm_up(self) -> bool:
        return self._progress.epoch * self._rounds.per_epoch > self._kind.warm_up_rounds


def _checked(evaluation: object) -> Evaluation:
    """*evaluation* with metrics of its own; the agent may have changed them since it made it.

    Raises:
        TypeError, ValueError: It is not an `Evaluation`, or its primary metric is missing.
    """
    if not isinstance(evaluation, Evaluation):
        raise TypeError(f"evaluate() must return Evaluation, got {type(evaluation).__name__}")
    return replace(evaluation, metrics=dict(evaluation.metrics))
