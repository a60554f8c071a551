"""`WorldModelAgent`: authors declare what a transition is and collect transitions.

To start fast, a method imports torch and the world model when it is called: an agent may do other
work meanwhile, or not need them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Reversible, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from infrastructure.agent_contract import (
    CONTRACT_VERSION,
    EvaluationReport,
    Forward,
    Publication,
    RunContext,
    Schedule,
    TrainingJob,
    Transition,
)
from infrastructure.agent_contract.agent import RecordedTransitions
from infrastructure.agent_contract.run_context import ROWS_FOLDER
from infrastructure.agent_contract.training_job import Batch
from infrastructure.agent_contract.transition import TransitionSpec
from infrastructure.decisions.log import logs_of
from infrastructure.trajectories.collector import collector_paused

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from infrastructure.world_model import NetworkShape, WorldModel
    from infrastructure.world_model.fitting import TrainingData
    from infrastructure.world_model_agent.off_policy import OffPolicyGate
    from infrastructure.world_model_agent.prior import ModelInUse


class WorldModelAgent(ABC):
    """Implements the `Agent` protocol with a world model of the transitions that `collect` yields.

    Subclasses set `name` and write `spec` and `collect`; everything else has a default.

    Attributes:
        name: Name of the agent, equal to its entry point's; ``[a-z][a-z0-9-]{0,31}``.
        training_steps: Maximum number of optimizer steps in a run.
        training_passes: Maximum number of passes over the training groups, so that a run does not
            overfit little data.
        epochs: Number of evaluations in a run; the steps are spread over them evenly.
        patience: Evaluations in a row without a lower loss on the calibration groups that end the
            training; None for none. The best epoch is published in any case.
        batch_size: Maximum number of rows per step; see `plan_training`.
        keep_fp32: Modules of the network that compute in FP32 under every precision; see
            `TrainingJob`.
        newest_transitions: Maximum number of transitions to train on; the newest are taken. More
            than 200,000 are trained on from memory-mapped files in the run's folder; see
            `prepare_large_data`.
        off_policy_gate: What the off-policy estimate must show for a model to be published:
            nothing (empty), ``not_worse`` than the model in use, or ``better``; see
            `check_off_policy`.
        recent_transitions: Number of the newest training transitions that weigh more, such as what
            running agents have reported since a change; 0 for none. Of more than 200,000 in all,
            none does.
        recent_weight: Weight of each of these in the ensemble's loss, a whole number; the linear
            model and the tests of a publication weigh all alike.
        prior_folder: Folder of the prior that ships with the agent, as
            `infrastructure.world_model_agent.prior.build_prior` wrote it; None for none. It is in
            use until a run publishes a model that beats it.
    """

    name: str
    contract_version: int = CONTRACT_VERSION
    training_steps: int = 5000
    training_passes: int = 200
    epochs: int = 20
    patience: int | None = 4
    batch_size: int = 256
    keep_fp32: Sequence[str] = ()
    newest_transitions: int = 200_000
    recent_transitions: int = 0
    recent_weight: int = 1
    off_policy_gate: OffPolicyGate = ""
    prior_folder: Path | None = None

    _data: TrainingData | None = None

    @abstractmethod
    def spec(self) -> TransitionSpec:
        """Declare observation, action and targets."""

    @abstractmethod
    def collect(self, context: RunContext) -> Iterator[Transition]:
        """Yield new transitions within ``context.budget``; each is recorded as it is yielded."""

    def schedule(self) -> Schedule:
        """Return the default schedule: every six hours. The operator's setting wins."""
        return Schedule(every_seconds=6 * 3600.0)

    def settings_model(self) -> type[BaseModel] | None:
        """Return the model of the agent's own settings; none by default."""
        return None

    def build_model(self, shape: NetworkShape) -> Module:
        """Build the network to train; an override must return the same heads."""
        from infrastructure.world_model import EnsembleNetwork

        return EnsembleNetwork(shape)

    def loss(self, forward: Forward, batch: Batch) -> Tensor:
        """Compute the negative log-likelihood of the targets, ``[]`` float32; autocast is off."""
        from infrastructure.world_model.networks import ensemble_loss

        return ensemble_loss(forward, batch)

    def evaluate(self, model: WorldModel, transitions: Sequence[Transition]) -> Mapping[str, float]:
        """Return the agent's own metrics on held-out transitions; none by default."""
        del model, transitions
        return {}

    def build_job(self, context: RunContext, transitions: RecordedTransitions) -> TrainingJob:
        """Split by group, encode, and plan the training; equal input gives an equal job.

        A group keeps its part of the split in every run, so that a published model was not
        trained on the groups that later runs test it on.

        Raises:
            InsufficientDataError: Too few transitions, held-out groups, or targets that vary.
        """
        from infrastructure.training.diagnostics.phase_clock import phase
        from infrastructure.world_model import NetworkShape
        from infrastructure.world_model.fitting import (
            PlanBounds,
            plan_training,
            training_job,
        )
        from infrastructure.world_model.networks import build_seeded
        from infrastructure.world_model_agent.encoding_mark import set_aside_other_weights

        with phase("encode"):
            data = self._prepare(context, transitions)
        for problem in data.describe_exclusions():
            context.logger.warning("training_data_incomplete", problem=problem)
        for finding in data.findings:
            fields = {"finding": finding.title, "problem": finding.problem}
            context.logger.warning("training_data_doubtful", **fields, remedy=finding.remedy)
        set_aside_other_weights(context, data.encoder)
        self._data = data
        bounds = PlanBounds(
            steps=self.training_steps,
            passes=self.training_passes,
            epochs=self.epochs,
            patience=self.patience,
            batch_size=self.batch_size,
        )
        rows = data.training_rows
        plan = replace(
            plan_training(rows, bounds, seed=context.seed, device=context.device),
            recent=self.recent_transitions,
            recent_weight=self.recent_weight,
        )
        if data.mapped is not None and self.recent_weight > 1:
            remedy = "set newest_transitions to at most 200000"
            context.logger.warning("recent_weight_ignored", rows=rows, remedy=remedy)
        shape = NetworkShape.of(data.encoder, data.codec)
        network = build_seeded(self.build_model, shape, context.seed)
        job = training_job(data, network, plan, self.loss)
        return replace(job, keep_fp32=self.keep_fp32)

    def _prepare(self, context: RunContext, transitions: RecordedTransitions) -> TrainingData:
        """Encode the newest transitions in memory, or in the run's folder if they are many."""
        from infrastructure.world_model.fitting import prepare_training_data
        from infrastructure.world_model.fitting.large_data import (
            IN_MEMORY_ROWS,
            LargeDataSource,
            prepare_large_data,
        )

        folder = context.run_folder / ROWS_FOLDER
        newest = min(self.newest_transitions, IN_MEMORY_ROWS + 1)
        if not (newest > IN_MEMORY_ROWS and folder.exists()):
            few = _read_newest(transitions, newest)
            if len(few) <= IN_MEMORY_ROWS:
                return prepare_training_data(self.spec(), few)
            del few
        source = LargeDataSource(
            transitions=transitions,
            newest=self.newest_transitions,
            report=lambda done, total: context.report_progress(done, total, unit="transitions"),
        )
        data, reason = prepare_large_data(self.spec(), source, folder)
        if reason:
            context.logger.warning("encoded_rows_rebuilt", reason=reason)
        return data

    def publish(self, context: RunContext, model: Module, report: EvaluationReport) -> Publication:
        """Publish the best of linear model, ensemble and blend if it passes the publication gate.

        Raises:
            RuntimeError: `build_job` was not called on this agent.
            OSError: Writing the model failed; the previous one stays published.
        """
        from infrastructure.world_model import WorldModel
        from infrastructure.world_model_agent.off_policy import LoggedDecisions
        from infrastructure.world_model_agent.publication import gate_publication

        if self._data is None:
            raise RuntimeError("publish needs the data of build_job: call build_job first")
        folder = self.published_folder(context)
        decision = gate_publication(
            self._data,
            model,
            folder,
            self.build_model,
            self.prior_folder,
            LoggedDecisions(
                logs=tuple(logs_of(context.agent_folder).values()), gate=self.off_policy_gate
            ),
        )
        world_model = WorldModel.from_fitted(decision.candidate, decision.metrics)
        world_model.beaten_prior = decision.beaten_prior
        agent_metrics = self.evaluate(world_model, self._data.test.transitions)
        metrics = {**decision.metrics, **agent_metrics, "training_steps": float(report.steps)}
        world_model.metrics = dict(metrics)
        if decision.published:
            world_model.save(folder)
        if self._data.mapped is not None:
            self._data.mapped.remove()
        doubts = ", ".join(finding.title for finding in self._data.findings)
        reason = f"{decision.reason}; doubtful data: {doubts}" if doubts else decision.reason
        return Publication(published=decision.published, reason=reason, metrics=metrics)

    def published_folder(self, context: RunContext) -> Path:
        """Return the folder of the published model."""
        return context.agent_folder / "published"

    def published_model(self, context: RunContext) -> WorldModel | None:
        """Load the published model; None if there is none or it is unreadable (logs a warning)."""
        from infrastructure.world_model import ModelFileError, WorldModel

        try:
            return WorldModel.load(self.published_folder(context), self.build_model)
        except FileNotFoundError:
            return None
        except ModelFileError as error:
            context.logger.warning("published_model_unreadable", error=str(error))
            return None

    def model_in_use(self, published: Path | None) -> ModelInUse:
        """Choose the published model if it has beaten the prior, if there is one; else the prior.

        Args:
            published: Folder of the published model, as `published_folder` gives it; None to use
                the prior.
        """
        from infrastructure.world_model_agent.prior import choose_model

        return choose_model(published, self.prior_folder, self.spec(), self.build_model)


def _read_newest(transitions: RecordedTransitions, count: int) -> Sequence[Transition]:
    """The last *count* of *transitions*, in the order in which they were recorded."""
    with collector_paused():
        if not isinstance(transitions, Reversible):
            return deque(transitions, maxlen=count)
        newest = list(islice(reversed(transitions), count))
    newest.reverse()
    return newest
