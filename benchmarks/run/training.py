"""A whole training beside its bare steps: the same model and loss, on batches at hand."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.run.subjects import CPU, NEVER_SECONDS, PRECISION, loop_options
from infrastructure.agent_contract import Evaluation, Forward, TrainingJob
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import Command, SaveCheckpoint
from infrastructure.events.event import BaseEvent, CheckpointSaved
from infrastructure.training import FP16Trainer, FP16TrainingConfig
from infrastructure.training.loop import train

_BLOCK_STEPS = 50  # so short that a disturbance meets both alike


@dataclass(kw_only=True, slots=True)
class Stopwatch:
    """Adds up processor seconds.

    Attributes:
        seconds: The sum.
    """

    seconds: float = 0.0
    _begun: float = 0.0

    def start(self) -> None:
        """Begin to count."""
        self._begun = time.process_time()

    def stop(self) -> None:
        """Add the time since `start`."""
        self.seconds += time.process_time() - self._begun

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()


@dataclass(kw_only=True, slots=True)
class TimedJob:
    """A job that measures its own parts while it is trained.

    Attributes:
        job: The job to train.
        batches: Time spent making batches.
        evaluations: Time spent in ``evaluate``.
    """

    job: TrainingJob
    batches: Stopwatch
    evaluations: Stopwatch

    @classmethod
    def of(cls, job: TrainingJob) -> TimedJob:
        """Measure *job*."""
        batches, evaluations = Stopwatch(), Stopwatch()

        def epoch(number: int) -> _TimedBatches:
            return _TimedBatches(job.batches(number), batches)

        def evaluate(forward: Forward) -> Evaluation:
            with evaluations:
                return job.evaluate(forward)

        timed = replace(job, batches=epoch, evaluate=evaluate)
        return cls(job=timed, batches=batches, evaluations=evaluations)


class _TimedBatches:
    def __init__(self, batches: Iterable[Batch], stopwatch: Stopwatch) -> None:
        self._batches, self._stopwatch = batches, stopwatch

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]  # a world model's batches are sized

    def __iter__(self) -> Iterator[Batch]:
        batches = iter(self._batches)
        while True:
            with self._stopwatch:
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


class BareSteps:
    """Steps of a copy of a job's model on the batches of its first epoch, made beforehand."""

    def __init__(self, job: TrainingJob) -> None:
        model = copy.deepcopy(job.model).train()
        self._trainer = FP16Trainer(
            model, job.optimizer(model.parameters()), FP16TrainingConfig(), wish=PRECISION
        )
        self._loss, self._batches, self._taken = job.loss, list(job.batches(0)), 0

    def run(self, steps: int) -> float:
        """Take *steps*; return the processor seconds."""
        begun = time.process_time()
        for _ in range(steps):
            self._trainer.train_batch(self._batches[self._taken % len(self._batches)], self._loss)
            self._taken += 1
        return time.process_time() - begun


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingCost:
    """Processor seconds of one training of *steps*, and of as many bare steps beside it.

    Attributes:
        total: The whole training.
        bare: The bare steps.
        batches, evaluations, checkpoints: Parts of *total*.
    """

    steps: int
    total: float
    bare: float
    batches: float
    evaluations: float
    checkpoints: float

    @property
    def ratio(self) -> float:
        """The training divided by its bare steps."""
        return self.total / self.bare


def measure_training(
    job: TrainingJob, folder: Path, seed: int, *, checkpoint_steps: int = 1000
) -> TrainingCost:
    """Train *job*, and let bare steps alternate with its steps, a short block at a time.

    A checkpoint is written every *checkpoint_steps*, and none by the clock, which depends on the
    machine's other work.
    """
    timed, bare, checkpoint = TimedJob.of(job), BareSteps(job), Stopwatch()
    bare.run(_BLOCK_STEPS)  # makes the optimizer's state
    steps, aside, spent = 0, 0.0, 0.0

    def commands() -> Iterator[Command]:
        nonlocal steps, aside, spent
        steps += 1
        if steps % _BLOCK_STEPS == 0:
            begun = time.process_time()
            spent += bare.run(_BLOCK_STEPS)
            aside += time.process_time() - begun
        if steps % checkpoint_steps == 0:
            checkpoint.start()
            yield SaveCheckpoint()

    def emit(event: BaseEvent) -> None:
        if isinstance(event, CheckpointSaved):
            checkpoint.stop()

    begun = time.process_time()
    result = train(
        timed.job,
        device=CPU,
        precision=PRECISION,
        config=FP16TrainingConfig(),
        options=loop_options(seed, checkpoint_seconds=NEVER_SECONDS),
        folder=folder,
        emit=emit,
        commands=commands,
    )
    total = time.process_time() - begun - aside
    return TrainingCost(
        steps=result.steps,
        total=total,
        bare=spent * result.steps / (steps // _BLOCK_STEPS * _BLOCK_STEPS),
        batches=timed.batches.seconds,
        evaluations=timed.evaluations.seconds,
        checkpoints=checkpoint.seconds,
    )
