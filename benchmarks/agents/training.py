"""Training an agent's own job alone, as a worker does, and what it has learned."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.agents.subjects import Subject
from infrastructure.agent_contract import Evaluation, Forward, RunContext, TrainingJob
from infrastructure.events import PrecisionState
from infrastructure.events.precision_state import PrecisionName
from infrastructure.precision_lab.weights_hash import weights_sha256
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop import LoopOptions, TrainingResult, train
from infrastructure.world_model.distributions import (
    DiscreteDistribution,
    predictive_distributions,
)
from infrastructure.world_model.fitting import TrainingData, prepare_training_data
from infrastructure.world_model.fitting.scoring import PRIMARY, measure

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """Length and settings of the trainings.

    Attributes:
        steps: Optimizer steps of a training, at most.
        loss_scale: Initial loss scale.
        growth_interval: Steps after which it grows.
        max_grad_norm: Bound of the norm of the gradient; None for none.
        batch_size: Rows per step; None for the agent's own.
        keep_fp32: Modules that stay in FP32.
    """

    steps: int
    loss_scale: float = 65536.0
    growth_interval: int = 2000
    max_grad_norm: float | None = 1.0
    batch_size: int | None = None
    keep_fp32: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """Outcome of one training.

    Attributes:
        accuracy: Share of held-out rows whose success is predicted right, by the best epoch.
        skill: The agent's primary metric there: gain over the base rate, in nats.
        best_epoch: Number of the epoch with the lowest loss on the calibration groups, from 1.
        steps: Optimizer steps.
        overflows: Steps that were skipped for an overflow.
        weights: SHA-256 of the weights of the best epoch.
    """

    accuracy: float
    skill: float
    best_epoch: int
    steps: int
    overflows: int
    weights: str


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """What a training of *subject* is measured on.

    Attributes:
        base_rate: Accuracy of always predicting what is more frequent in the training groups.
    """

    data: TrainingData
    succeeded_N: Tensor
    base_rate: float

    @classmethod
    def of(cls, subject: Subject) -> HeldOut:
        """The test groups of *subject*, as its job splits them."""
        data = prepare_training_data(subject.build().spec(), subject.transitions)
        name, label = _success(data)
        succeeded_N = data.test.outcomes[name] == label
        usual = data.train.outcomes[name].eq(label).double().mean() > 0.5
        return cls(
            data=data,
            succeeded_N=succeeded_N,
            base_rate=float((succeeded_N == usual).double().mean()),
        )

    @torch.no_grad()
    def measure(self, job: TrainingJob) -> tuple[float, float]:
        """Accuracy and primary metric of the job's model, in FP32."""
        test, codec = self.data.test, self.data.codec
        outputs = job.model.eval()(test.features.inputs())
        predicted = predictive_distributions(outputs, codec, len(test.features))
        name, label = _success(self.data)
        distribution = predicted[name]
        if not isinstance(distribution, DiscreteDistribution):
            raise TypeError(f"the success of {name} is not a label")
        right_N = (distribution.probabilities[:, label] > 0.5) == self.succeeded_N
        return float(right_N.double().mean()), measure(predicted, test.outcomes, codec)[PRIMARY]


def _success(data: TrainingData) -> tuple[str, int]:
    success = data.codec.success_label
    if success is None:
        raise ValueError("the agent names no success label, or it does not vary in its records")
    return success


def build_job(subject: Subject, context: RunContext, effort: Effort) -> TrainingJob:
    """The job that the agent itself builds, with the bounds of *effort*."""
    agent = subject.build()
    agent.training_steps = min(agent.training_steps, effort.steps)
    agent.batch_size = effort.batch_size or agent.batch_size
    agent.keep_fp32 = effort.keep_fp32 or agent.keep_fp32
    return agent.build_job(context, subject.transitions)


class EpochCount:
    """Evaluates as the job does, and notes which epoch has the lowest selection loss."""

    def __init__(self, job: TrainingJob) -> None:
        self._evaluate, self._lowest = job.evaluate, math.inf
        self.epochs, self.best = 0, 0

    def __call__(self, forward: Forward) -> Evaluation:
        """Evaluate."""
        evaluation = self._evaluate(forward)
        self.epochs += 1
        loss = evaluation.selection_loss
        if loss is not None and loss < self._lowest:
            self._lowest, self.best = loss, self.epochs
        return evaluation


class Training:
    """One training of *subject*, ready to be run."""

    def __init__(
        self, subject: Subject, precision: PrecisionName, seed: int, effort: Effort
    ) -> None:
        self._context = subject.context(f"alone-{precision}-{seed}", seed)
        shutil.rmtree(self._context.run_folder)  # of an earlier training
        self._context.run_folder.mkdir()
        job = build_job(subject, self._context, effort)
        self._epochs = EpochCount(job)
        self.job = replace(job, evaluate=self._epochs)
        self._precision, self._seed, self._effort = precision, seed, effort

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of `train` besides the job."""
        effort, precision = self._effort, self._precision
        return {
            "device": CPU,
            "precision": PrecisionState(
                requested=precision, effective=precision, reason="operator"
            ),
            "config": FP16TrainingConfig(
                loss_scale=effort.loss_scale,
                growth_interval=effort.growth_interval,
                max_grad_norm=effort.max_grad_norm,
                cpu_half=True,
            ),
            "options": LoopOptions(seed=self._seed, checkpoint_interval_seconds=math.inf),
            "folder": self._context.run_folder / "checkpoints",
            "emit": lambda _: None,
            "commands": tuple,
            "best_epoch": self._context.run_folder / "best-epoch.pt",
        }

    def outcome(self, result: TrainingResult, held_out: HeldOut) -> Trained:
        """What was learned; removes the files of the run."""
        weights = weights_sha256({"model": self.job.model})
        accuracy, skill = held_out.measure(self.job)
        shutil.rmtree(self._context.run_folder)
        return Trained(
            accuracy=accuracy,
            skill=skill,
            best_epoch=self._epochs.best,
            steps=result.steps,
            overflows=int(result.stats["overflow_steps"]),
            weights=weights,
        )


def train_alone(
    subject: Subject, precision: PrecisionName, seed: int, effort: Effort, held_out: HeldOut
) -> Trained:
    """Train *subject* as its worker does."""
    training = Training(subject, precision, seed, effort)
    return training.outcome(train(training.job, **training.arguments), held_out)
