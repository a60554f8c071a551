"""Questions to a job that its kind answers; `kind_of` alone tells kinds apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.agent_contract import Evaluation, Forward, Job, Part, Target, TrainingJob
from infrastructure.agent_contract.on_policy_job import LogProbFunctions, OnPolicyJob, Roles
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events.role_precision import FP32
from infrastructure.training.distributed import DistributedModel, Ranks
from infrastructure.training.model_copy import copy_model
from infrastructure.training.precision import Precision, PrecisionForward
from infrastructure.training.precision.roles import Role, RoleForward
from infrastructure.training.rounds.generation import generate
from infrastructure.training.rounds.on_policy import OnPolicyRounds
from infrastructure.training.rounds.rounds import DatasetRounds, Rounds

BatchSource: TypeAlias = Literal["batches", "warm-up", "rollout"]
"""What makes a round's batches: recorded data, demonstrations, or the policy."""

MakeBatches: TypeAlias = Callable[[], Iterable[Batch]]


class JobKind(Protocol):
    """Answers of one job.

    Attributes:
        roles: Roles of models that its batches need; none where one model learns from data.
        role_preset: Preset of their precisions that the job chose, or None.
        log_probs: How to compute log-probabilities, to compare trainer and rollout; None if it
            cannot be done.
        rounds: Rounds of the whole training that generate batches, the warm-up's among them.
        warm_up_rounds: How many of them train on demonstrations.
        keeps_best_epoch: Whether the weights of the best epoch are published, not the last ones.
        parts, targets: Parts that train the model, and target networks; none where one optimizer
            trains it.
        compiles: Whether steps run the model by `torch.compile`.
        recorded_loss: Loss of a recorded batch, which can be replayed; None if batches are
            generated.
        step_loss: Loss of a step, which can be replayed on its batch, recorded or generated.
    """

    roles: tuple[Role, ...]
    role_preset: str | None
    log_probs: LogProbFunctions | None
    rounds: int
    warm_up_rounds: int
    keeps_best_epoch: bool
    parts: Sequence[Part]
    targets: Sequence[Target]
    compiles: bool
    recorded_loss: Callable[[Forward, Batch], Tensor] | None
    step_loss: Callable[[Forward, Batch], Tensor]

    def begin_rounds(self, model: DistributedModel, ranks: Ranks, device: torch.device) -> Rounds:
        """The source of the batches of a training of *model*."""

    def total_steps(self, per_round: int, rounds_done: int, updates_done: int) -> int:
        """Steps of the training if all further rounds have as many updates as *per_round*.

        An update is a step, or a batch that each part of the job may take a step for.
        """

    def first_epoch(self, device: torch.device) -> Iterable[Batch]:
        """Batches of epoch 0, generated in FP32 with the untrained model where they are."""

    def generate_untrained(self, round_: int, model: Module, device: torch.device) -> list[Batch]:
        """Batches of *round_*, generated in FP32 with *model*, a copy of the job's on *device*."""

    def watched(
        self,
        make: Callable[[BatchSource, MakeBatches], Iterable[Batch]],
        evaluate: Callable[[Forward], Evaluation],
    ) -> Job:
        """The job with *make* around all that makes its batches, and with this *evaluate*."""

    def round_metrics(self, batches: Sequence[Batch]) -> Mapping[str, float]:
        """Further metrics of an evaluation, from the *batches* of the last round before it."""


class RecordedKind:
    """Answers of a `TrainingJob`."""

    roles: tuple[Role, ...] = ()
    role_preset: str | None = None
    log_probs: LogProbFunctions | None = None
    rounds = warm_up_rounds = 0

    def __init__(self, job: TrainingJob) -> None:
        self._job, self.keeps_best_epoch, self.compiles = job, job.keep_best_epoch, job.compile
        self.parts, self.targets = job.parts, job.targets
        self.recorded_loss: Callable[[Forward, Batch], Tensor] | None = job.loss
        self.step_loss: Callable[[Forward, Batch], Tensor] = job.loss

    def begin_rounds(self, model: DistributedModel, ranks: Ranks, device: torch.device) -> Rounds:
        """One round for each epoch."""
        del model, ranks, device
        return DatasetRounds(self._job)

    def total_steps(self, per_round: int, rounds_done: int, updates_done: int) -> int:
        """As many updates in each epoch."""
        del rounds_done, updates_done
        return _steps(self.parts, per_round * self._job.epochs)

    def first_epoch(self, device: torch.device) -> Iterable[Batch]:
        """Recorded batches."""
        del device
        return self._job.batches(0)

    def generate_untrained(self, round_: int, model: Module, device: torch.device) -> list[Batch]:
        """Nothing: the batches are recorded."""
        del round_, model, device
        return []

    def watched(
        self,
        make: Callable[[BatchSource, MakeBatches], Iterable[Batch]],
        evaluate: Callable[[Forward], Evaluation],
    ) -> Job:
        """See `JobKind`."""
        batches = self._job.batches
        return replace(
            self._job,
            batches=lambda epoch: make("batches", lambda: batches(epoch)),
            evaluate=evaluate,
        )

    def round_metrics(self, batches: Sequence[Batch]) -> Mapping[str, float]:
        """None."""
        del batches
        return {}


class OnPolicyKind:
    """Answers of an `OnPolicyJob`."""

    keeps_best_epoch = True
    compiles = False
    recorded_loss: Callable[[Forward, Batch], Tensor] | None = None

    def __init__(self, job: OnPolicyJob) -> None:
        self._job = job
        self.parts, self.targets = job.parts, job.targets
        reference = (Role.REFERENCE,) if job.reference else ()
        value = (Role.VALUE,) if job.value is not None else ()
        self.roles: tuple[Role, ...] = (Role.POLICY, Role.ROLLOUT, *reference, *value)
        self.role_preset, self.log_probs = job.role_precision, job.log_probs
        self.step_loss: Callable[[Forward, Batch], Tensor] = job.loss
        self.rounds = job.epochs * job.rounds_per_epoch
        self.warm_up_rounds = job.warm_up_rounds

    def begin_rounds(self, model: DistributedModel, ranks: Ranks, device: torch.device) -> Rounds:
        """Rounds generated by copies of *model*."""
        return OnPolicyRounds(self._job, model, ranks, device)

    def total_steps(self, per_round: int, rounds_done: int, updates_done: int) -> int:
        """The updates done, and as many in each further round."""
        return _steps(self.parts, updates_done + per_round * (self.rounds - rounds_done))

    def first_epoch(self, device: torch.device) -> Iterable[Batch]:
        """See `JobKind`."""
        model = copy_model(self._job.model).to(device)
        rounds = range(self._job.rounds_per_epoch)
        return chain.from_iterable(self.generate_untrained(n, model, device) for n in rounds)

    def generate_untrained(self, round_: int, model: Module, device: torch.device) -> list[Batch]:
        """See `JobKind`."""
        roles = untrained_roles(self._job, model, device)
        training = model.training
        model.eval()
        try:
            return generate(self._job, round_, roles)
        finally:
            model.train(training)

    def watched(
        self,
        make: Callable[[BatchSource, MakeBatches], Iterable[Batch]],
        evaluate: Callable[[Forward], Evaluation],
    ) -> Job:
        """See `JobKind`."""
        batches, warm_up = self._job.batches, self.warm_up_rounds

        def made(round_: int, roles: Roles) -> Iterable[Batch]:
            source: BatchSource = "warm-up" if round_ < warm_up else "rollout"
            return make(source, lambda: batches(round_, roles))

        return replace(self._job, batches=made, evaluate=evaluate)

    def round_metrics(self, batches: Sequence[Batch]) -> Mapping[str, float]:
        """Those that the job computes."""
        compute = self._job.round_metrics
        return {} if compute is None else compute(batches)


def untrained_roles(job: OnPolicyJob, model: Module, device: torch.device) -> Roles:
    """Roles that all compute with the weights of *model* in FP32, as before the first step."""
    return Roles(
        rollout=RoleForward(model, device, FP32),
        policy=PrecisionForward(model, device, Precision.FP32),
        reference=RoleForward(model, device, FP32) if job.reference else None,
        device=str(device),
        check=True,
    )


def _steps(parts: Sequence[Part], updates: int) -> int:
    """Optimizer steps of so many *updates*; each part takes one for every so many of them."""
    return sum(-(-updates // part.every) for part in parts) or updates


def kind_of(job: Job) -> JobKind:
    """The answers of *job*.

    Raises:
        TypeError: It is of no known kind.
    """
    if isinstance(job, OnPolicyJob):
        return OnPolicyKind(job)
    if isinstance(job, TrainingJob):
        return RecordedKind(job)
    raise TypeError(f"a job must be a TrainingJob or an OnPolicyJob, got {type(job).__name__}")
