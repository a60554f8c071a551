"""Trains a job for a few seconds through the real loop and times its phases."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from infrastructure.agent_contract import Evaluation, Forward, Job
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import Command, PrecisionState, SaveCheckpoint
from infrastructure.events.command import Stop
from infrastructure.events.event import BaseEvent, CheckpointSaved, Notice, StepStats
from infrastructure.training.diagnostics.phase_clock import PhaseClock, PhaseTime
from infrastructure.training.loop import Stepper, TrainingEnv, prepare, run
from infrastructure.training.parts import Trainer, trainers_of
from infrastructure.training.precision import Precision, PrecisionForward
from infrastructure.training.profiling.extrapolation import (
    CHECKPOINT,
    EVALUATE,
    ROLLOUT,
    SET_UP,
    TrainingTimes,
)
from infrastructure.training.rounds import BatchSource, MakeBatches, kind_of

_MEMORY_STEPS = 50  # between two notes of the peak memory
_LOOP = "loop"
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


def time_training(
    job: Job,
    clock: PhaseClock,
    env: TrainingEnv,
    *,
    seconds: float,
    checkpoint_interval_seconds: float,
) -> TimedTraining:
    """Train *job* for about so many seconds, with at least two checkpoints and one evaluation.

    Args:
        clock: Clock without an open phase.
        env: What to train it with, with a new folder for its checkpoints; its ``emit`` and
            ``commands`` are not used.
        seconds: Wall seconds after the first steps; a step or an evaluation that has begun ends.
        checkpoint_interval_seconds: Longest time between two checkpoints of a run.

    Raises:
        Exception: What a training raises; see `train`.
    """
    timed = _Timer(job, clock, seconds)
    trainer = timed.train(env)
    if EVALUATE not in {*timed.first, *timed.rest}:
        timed.evaluate_once(trainer)
    kind = kind_of(job)
    rounds, warm_up_rounds = kind.rounds, min(kind.warm_up_rounds, kind.rounds)
    if warm_up_rounds < rounds and ROLLOUT not in {*timed.set_up, *timed.first, *timed.rest}:
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

    def __init__(self, job: Job, clock: PhaseClock, seconds: float) -> None:
        self._job, self._clock, self._seconds = job, clock, seconds
        self._kind = kind_of(job)
        self._ends_at = math.inf
        self._commands: list[Command] = []
        self._saving = False
        self.set_up: dict[str, PhaseTime] = {}
        self.first: dict[str, PhaseTime] = {}
        self.rest: dict[str, PhaseTime] = {}
        self.first_steps, self.complete = 0, True
        self.total_steps: int | None = None
        self.evaluations: list[Evaluation] = []
        self.remarks: list[str] = []

    def train(self, env: TrainingEnv) -> Trainer:
        """Train, stop after the seconds, and return the trainer."""
        clock = self._clock
        clock.enter(SET_UP)
        job = self._kind.watched(self._make, self._evaluate)
        timed_env = replace(env, emit=self._on_event, commands=self._due_commands)
        training = prepare(job, timed_env)
        trainer = training.trainer
        clock.mark(training.evaluations, {"evaluate": EVALUATE})  # the best epoch is saved in it
        training.stepper = _TimedStepper(training.stepper, trainer, self)
        run(training)
        self._end_checkpoint()
        clock.exit()
        clock.record_memory(_LOOP)
        self.rest = clock.take()
        self.first_steps = self.first_steps or trainer.training_steps
        return trainer

    def before_step(self, trainer: Trainer) -> None:
        """End what comes before the first step, or a checkpoint that was not written."""
        self._end_checkpoint()
        if not self.set_up:
            self._clock.exit()
            self._clock.record_memory(SET_UP)
            self.set_up = self._clock.take()
            for part in trainers_of(trainer):
                self._clock.mark(part, _OF_TRAINER)
            self._clock.enter(_LOOP)

    def after_step(self, trainer: Trainer) -> None:
        """End the first steps, or the training."""
        clock, steps = self._clock, trainer.training_steps
        if not self.first_steps and steps >= WARM_UP_STEPS:
            clock.exit()
            self.first, self.first_steps = clock.take(), steps
            clock.enter(_LOOP)
            self._ends_at = time.monotonic() + self._seconds
            self._commands.append(SaveCheckpoint())
        elif time.monotonic() >= self._ends_at:
            self._commands.append(Stop(reason="measured"))
            self._ends_at, self.complete = math.inf, False
        if steps % _MEMORY_STEPS == 1:
            clock.record_memory(_LOOP)

    def evaluate_once(self, trainer: Trainer) -> None:
        """Evaluate as at the end of an epoch, if none has ended."""
        model = trainer.model.eval()
        forward = PrecisionForward(model, trainer.device, Precision.FP32)
        with torch.no_grad(), forward.without_autocast(), self._clock.phase(EVALUATE):
            self._evaluate(forward)
        self.rest |= self._clock.take()

    def generate_once(self, trainer: Trainer) -> None:
        """Generate the first round after the warm-up, if the training has not come so far."""
        rounds = self._kind.warm_up_rounds
        with self._clock.phase(ROLLOUT):
            self._kind.generate_untrained(rounds, trainer.model.eval(), trainer.device)
        self.rest |= self._clock.take()
        self.remarks.append(
            f"the steps measured are those of the warm-up of {rounds} rounds; one round was "
            "generated after it, in FP32"
        )

    def _make(self, part: BatchSource, make: MakeBatches) -> Iterable[Batch]:
        """Charge the making of batches to a phase of its own."""
        if part != "batches":
            with self._clock.phase(part):
                return list(make())
        with self._clock.phase("batches"):
            batches = make()
        if isinstance(batches, Sized):
            return _SizedBatches(batches, len(batches), self._clock)
        return _Batches(batches, self._clock)

    def _evaluate(self, forward: Forward) -> Evaluation:
        evaluation = self._job.evaluate(forward)
        self._clock.record_memory(EVALUATE)
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


class _TimedStepper:
    """Takes the steps of a training, with `_Timer.before_step` and `_Timer.after_step`."""

    def __init__(self, stepper: Stepper, trainer: Trainer, timer: _Timer) -> None:
        self._stepper, self._trainer, self._timer = stepper, trainer, timer

    def train_batch(
        self,
        batch: Batch,
        compute_loss_fn: Callable[[Forward, Batch], Tensor],
        *,
        replay: bool = False,
    ) -> None:
        """Take the step; see `FP16Trainer.train_batch`."""
        self._timer.before_step(self._trainer)
        self._stepper.train_batch(batch, compute_loss_fn, replay=replay)
        self._timer.after_step(self._trainer)


class _Batches:
    """Batches of the job; taking each of them is charged to the phase ``batches``."""

    def __init__(self, batches: Iterable[Batch], clock: PhaseClock) -> None:
        self._batches, self._clock = batches, clock

    def __iter__(self) -> Iterator[Batch]:
        with self._clock.phase("batches"):
            taken = iter(self._batches)
        while True:
            with self._clock.phase("batches"):
                head = list(islice(taken, 1))
            if not head:
                return
            yield head[0]


class _SizedBatches(_Batches):
    """The same with a length, from which the loop computes the steps of the run."""

    def __init__(self, batches: Iterable[Batch], length: int, clock: PhaseClock) -> None:
        super().__init__(batches, clock)
        self._length = length

    def __len__(self) -> int:
        return self._length
