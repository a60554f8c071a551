"""Trains a job for a few seconds through the real loop and times its phases."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from itertools import islice

import torch

from infrastructure.agent_contract import Evaluation, Forward, Job
from infrastructure.agent_contract.on_policy_job import OnPolicyJob, Roles
from infrastructure.agent_contract.training_job import Batch, TrainingJob
from infrastructure.events import Command, PrecisionState, SaveCheckpoint
from infrastructure.events.command import Stop
from infrastructure.events.event import BaseEvent, CheckpointSaved, Notice, StepStats
from infrastructure.training.diagnostics.phase_clock import PhaseClock, PhaseTime
from infrastructure.training.fp16_trainer import FP16Trainer
from infrastructure.training.loop import StepRequest, Steps, TrainingResult
from infrastructure.training.precision import Precision, PrecisionForward
from infrastructure.training.profiling.extrapolation import (
    CHECKPOINT,
    EVALUATE,
    ROLLOUT,
    SET_UP,
    WARM_UP,
    TrainingTimes,
)
from infrastructure.training.rounds.first_batches import untrained_roles
from infrastructure.training.rounds.generation import generate

_MEMORY_STEPS = 50  # between two notes of the peak memory
WARM_UP_STEPS = 5  # make the optimizer's state and warm the allocator and caches
_OF_TRAINER = {  # phase by the trainer's method
    "training_step": "forward",
    "_backward": "backward",
    "finish_window": "optimizer",
    "update_loss_scale": "loss scale",
    "start_reading": "statistics",
    "get_stats": "statistics",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedTraining:
    """A training with its times.

    Attributes:
        precision: Precision in force at the end.
        evaluation: The last one.
        remarks: Warnings of the training.
    """

    times: TrainingTimes
    precision: PrecisionState
    evaluation: Evaluation
    remarks: tuple[str, ...]


BeginTraining = Callable[..., Steps[TrainingResult]]
"""`training_steps` with all arguments but ``job``, ``emit`` and ``commands``."""


def time_training(
    job: Job,
    clock: PhaseClock,
    begin: BeginTraining,
    *,
    seconds: float,
    checkpoint_interval_seconds: float,
) -> TimedTraining:
    """Train *job* for about so many seconds, with at least two checkpoints and one evaluation.

    Args:
        clock: Clock without an open phase.
        begin: Function that begins the training, with a new folder for its checkpoints.
        seconds: Wall seconds after the first steps; a step or an evaluation that has begun ends.
        checkpoint_interval_seconds: Longest time between two checkpoints of a run.

    Raises:
        Exception: What a training raises; see `train`.
    """
    timed = _Timer(job, clock)
    trainer = timed.train(begin, seconds)
    if EVALUATE not in {*timed.first, *timed.rest}:
        timed.evaluate_once(trainer)
    rounds = warm_up_rounds = 0
    if isinstance(job, OnPolicyJob):
        rounds = job.epochs * job.rounds_per_epoch
        warm_up_rounds = min(job.warm_up_rounds, rounds)
        if ROLLOUT not in {*timed.set_up, *timed.first, *timed.rest} and warm_up_rounds < rounds:
            timed.generate_once(trainer)
    taken, steady = trainer.training_steps, trainer.training_steps - timed.first_steps
    times = TrainingTimes(
        set_up=timed.set_up,
        first=timed.first if steady else timed.rest,
        steady=timed.rest if steady else {},
        first_steps=timed.first_steps,
        steady_steps=steady,
        total_steps=taken if timed.complete else timed.total_steps,
        epochs=job.epochs,
        rounds=rounds - warm_up_rounds,
        warm_up_rounds=warm_up_rounds,
        complete=timed.complete,
        checkpoint_interval_seconds=checkpoint_interval_seconds,
    )
    return TimedTraining(
        times=times,
        precision=trainer.precision_state,
        evaluation=timed.evaluations[-1],
        remarks=tuple(timed.remarks),
    )


class _Timer:
    """Takes the times of a training while it goes on.

    Attributes:
        set_up, first, rest: Times before the first step, of the first steps, and of the others.
        first_steps: Optimizer steps in *first*.
        total_steps: As the training reports it.
        complete: Whether the training came to its own end.
        evaluations: Those made.
        remarks: Warnings of the training.
    """

    def __init__(self, job: Job, clock: PhaseClock) -> None:
        self._job, self._clock = job, clock
        self._commands: list[Command] = []
        self._saving = False
        self.set_up: dict[str, PhaseTime] = {}
        self.first: dict[str, PhaseTime] = {}
        self.rest: dict[str, PhaseTime] = {}
        self.first_steps, self.complete = 0, True
        self.total_steps: int | None = None
        self.evaluations: list[Evaluation] = []
        self.remarks: list[str] = []

    def train(self, begin: BeginTraining, seconds: float) -> FP16Trainer:
        """Train, stop after so many *seconds*, and return the trainer."""
        clock, ends_at = self._clock, math.inf
        job, commands = self._timed_job(), self._due_commands
        steps = begin(job, emit=self._on_event, commands=commands)
        with clock.phase(SET_UP, memory=True):
            first = next(steps)
        request: StepRequest | None = first
        trainer = first.loop.trainer
        marked = clock.mark(trainer, _OF_TRAINER)
        self.set_up = clock.take()
        while request is not None:
            with clock.phase("loop"):
                request.take()
            if not self.first_steps and trainer.training_steps >= WARM_UP_STEPS:
                self.first, self.first_steps = clock.take(), trainer.training_steps
                ends_at = time.monotonic() + seconds
                self._commands.append(SaveCheckpoint())
            elif time.monotonic() >= ends_at:
                self._commands.append(Stop(reason="measured"))
                ends_at, self.complete = math.inf, False
            with clock.phase("loop", memory=trainer.training_steps % _MEMORY_STEPS == 1):
                request = next(steps, None)
                self._end_checkpoint()
        marked.remove()
        self.rest = clock.take()
        self.first_steps = self.first_steps or trainer.training_steps
        return trainer

    def evaluate_once(self, trainer: FP16Trainer) -> None:
        """Evaluate as at the end of an epoch, if none has ended."""
        model = trainer.model.eval()
        forward = PrecisionForward(model, trainer.device, Precision.FP32)
        with torch.no_grad(), forward.without_autocast():
            self._evaluate(forward)
        self.rest |= self._clock.take()

    def generate_once(self, trainer: FP16Trainer) -> None:
        """Generate the first round after the warm-up, if the training has not come so far."""
        job = self._timed_job()
        if isinstance(job, OnPolicyJob):
            roles = untrained_roles(job, trainer.model.eval(), trainer.device)
            generate(job, job.warm_up_rounds, roles)
            self.rest |= self._clock.take()
            self.remarks.append(
                f"the steps measured are those of the warm-up of {job.warm_up_rounds} rounds; one "
                "round was generated after it, in FP32"
            )

    def _timed_job(self) -> Job:
        """The job with its batches and its evaluation charged to phases of their own."""
        job = self._job
        if isinstance(job, OnPolicyJob):
            batches = self._rollout(job.batches, job.warm_up_rounds)
            return replace(job, batches=batches, evaluate=self._evaluate)
        if isinstance(job, TrainingJob):
            return replace(job, batches=self._batches(job.batches), evaluate=self._evaluate)
        raise TypeError(f"a job must be a TrainingJob or an OnPolicyJob, got {type(job).__name__}")

    def _batches(
        self, batches: Callable[[int], Iterable[Batch]]
    ) -> Callable[[int], Iterable[Batch]]:
        def timed(epoch: int) -> Iterable[Batch]:
            with self._clock.phase("batches"):
                found = batches(epoch)
            if isinstance(found, Sized):
                return _SizedBatches(found, len(found), self._clock)
            return _Batches(found, self._clock)

        return timed

    def _rollout(
        self, batches: Callable[[int, Roles], Iterable[Batch]], warm_up_rounds: int
    ) -> Callable[[int, Roles], Iterable[Batch]]:
        def timed(round_: int, roles: Roles) -> Iterable[Batch]:
            with self._clock.phase(WARM_UP if round_ < warm_up_rounds else ROLLOUT):
                return list(batches(round_, roles))

        return timed

    def _evaluate(self, forward: Forward) -> Evaluation:
        with self._clock.phase(EVALUATE, memory=True):
            evaluation = self._job.evaluate(forward)
        self.evaluations.append(evaluation)
        return evaluation

    def _due_commands(self) -> list[Command]:
        self._end_checkpoint()
        due, self._commands = self._commands, []
        if due:  # each of them saves a checkpoint now
            self._clock.enter(CHECKPOINT)
            self._saving = True
        return due

    def _on_event(self, event: BaseEvent) -> None:
        if isinstance(event, StepStats):
            self.total_steps = event.total_steps or self.total_steps
        elif isinstance(event, CheckpointSaved):
            self._end_checkpoint()
        elif isinstance(event, Notice) and event.level == "warning":
            self.remarks.append(f"{event.event}: {'; '.join(event.fields.values())}")

    def _end_checkpoint(self) -> None:
        if self._saving:
            self._saving = False
            self._clock.exit()


class _Batches:
    """Batches of the job; taking each of them is charged to the phase ``batches``."""

    def __init__(self, batches: Iterable[Batch], clock: PhaseClock) -> None:
        self._batches, self._clock = batches, clock

    def __iter__(self) -> Iterator[Batch]:
        with self._clock.phase("batches"):
            taken = iter(self._batches)
        while True:
            with self._clock.phase("batches"):
                found = list(islice(taken, 1))
            if not found:
                return
            yield found[0]


class _SizedBatches(_Batches):
    """The same with a length, from which the loop computes the steps of the run."""

    def __init__(self, batches: Iterable[Batch], length: int, clock: PhaseClock) -> None:
        super().__init__(batches, clock)
        self._length = length

    def __len__(self) -> int:
        return self._length
