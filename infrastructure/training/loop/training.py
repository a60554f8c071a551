"""A training as it is prepared: what it works with, and where it stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.optim import Optimizer

from infrastructure.agent_contract import Forward, Job
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events.event import StepStats
from infrastructure.training.diagnostics import StepProfile
from infrastructure.training.distributed import Ranks
from infrastructure.training.loop.divergence import DivergenceHandler
from infrastructure.training.loop.early_stop import EarlyStop
from infrastructure.training.loop.env import TrainingEnv
from infrastructure.training.loop.evaluations import EpochEvaluations
from infrastructure.training.loop.lr_schedule import LearningRateSchedule
from infrastructure.training.loop.precision_decision import DecidedPrecision, PrecisionDecision
from infrastructure.training.loop.progress import SavedProgress
from infrastructure.training.loop.statistics import StatsReporter
from infrastructure.training.loop.telemetry import TelemetryObserver
from infrastructure.training.parts import Trainer, trainers_of
from infrastructure.training.rounds import JobKind, Rounds


class Stepper(Protocol):
    """What takes the steps of a training: its trainer, or something around it."""

    def train_batch(
        self,
        batch: Batch,
        compute_loss_fn: Callable[[Forward, Batch], Tensor],
        *,
        replay: bool = False,
    ) -> None:
        """See `FP16Trainer.train_batch`."""


class StepObserver(Protocol):
    """Observes a training every few optimizer steps; its time does not count as step time.

    Attributes:
        interval_steps: `observe` is called after every step whose number this divides.
    """

    interval_steps: int

    def observe(self, trainer: Trainer) -> None:
        """Observe *trainer*, at a step boundary, without changing it.

        Every rank is called after the same step.
        """


@dataclass(kw_only=True, slots=True)
class Training:
    """One training, ready to be run from its first step, or from its newest checkpoint.

    Attributes:
        job: The job, with the modules that the configuration keeps in FP32.
        kind: Answers of the job that its kind decides.
        env: What it is trained with; ranks other than 0 emit nothing.
        ranks: The ranks that train it.
        trainer: Trainer of the job's model.
        stepper: What takes the steps: the trainer, or a wrapper of it. May be replaced before the
            training is run.
        first: Precision to begin with.
        precision: Decides every later precision.
        schedule: Learning-rate schedule, or None.
        rounds: Source of the batches.
        progress: Position in the data; saves and restores checkpoints.
        early_stop: Whether evaluations have stopped improving.
        evaluations: Evaluates after each epoch, and keeps the best one.
        reporter: Reports statistics.
        divergence: Reacts to overflows at the floor and to losses that stay non-finite.
        telemetry: Measures lost updates; None if it is off.
        profile: Profiles steps if that is asked for.
        observers: Observers, called in this order.
        unhandled: Statistics that nothing has reacted to yet.
        stopped: Whether the training must end here; a checkpoint is written if the disk has room.
    """

    job: Job
    kind: JobKind
    env: TrainingEnv
    ranks: Ranks
    trainer: Trainer
    stepper: Stepper
    first: DecidedPrecision
    precision: PrecisionDecision
    schedule: LearningRateSchedule | None
    rounds: Rounds
    progress: SavedProgress
    early_stop: EarlyStop
    evaluations: EpochEvaluations
    reporter: StatsReporter
    divergence: DivergenceHandler
    telemetry: TelemetryObserver | None
    profile: StepProfile
    observers: Sequence[StepObserver]
    unhandled: StepStats | None = None
    stopped: bool = False

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizer of each part; of a job without parts, its optimizer."""
        return [trainer.optimizer for trainer in trainers_of(self.trainer)]
