"""`WorldModelAgent`: an author says what a transition is and where transitions come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel
from torch import Tensor
from torch.nn import Module

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
from infrastructure.agent_contract.training_job import Batch
from infrastructure.agent_contract.transition import TransitionSpec
from infrastructure.world_model import EnsembleNetwork, ModelFileError, NetworkShape, WorldModel
from infrastructure.world_model.best_epoch import BestEpoch
from infrastructure.world_model.heads import ensemble_loss
from infrastructure.world_model.network import build_seeded
from infrastructure.world_model.training_data import TrainingData, prepare
from infrastructure.world_model.training_job import TrainingPlan, training_job
from infrastructure.world_model_agent.publication import judge


class WorldModelAgent(ABC):
    """Meets the `Agent` protocol with a world model learned from what `collect` yields.

    Subclasses set `name` and write `spec` and `collect`; everything else has a default.

    Attributes:
        name: Equal to the entry point's name; ``[a-z][a-z0-9-]{0,31}``.
        training_steps: Most optimizer steps of a run.
        training_passes: Most passes over the training groups: little data is not worn out.
        epochs: Evaluations in a run; the steps are spread over them evenly.
        batch_size: Rows per step.
        newest_transitions: Most transitions that are trained on: the newest recorded.
    """

    name: str
    contract_version: int = CONTRACT_VERSION
    training_steps: int = 5000
    training_passes: int = 200
    epochs: int = 20
    batch_size: int = 256
    newest_transitions: int = 200_000

    _data: TrainingData | None = None

    @abstractmethod
    def spec(self) -> TransitionSpec:
        """Declare observation, action and targets."""

    @abstractmethod
    def collect(self, context: RunContext) -> Iterator[Transition]:
        """Yield new transitions within ``context.budget``; each is recorded as it comes."""

    def schedule(self) -> Schedule:
        """Every six hours, unless the operator says otherwise."""
        return Schedule(every_seconds=6 * 3600.0)

    def settings_model(self) -> type[BaseModel] | None:
        """The agent's own settings; none by default."""
        return None

    def build_model(self, shape: NetworkShape) -> Module:
        """Build the network to train; override to use another that returns the same heads."""
        return EnsembleNetwork(shape)

    def loss(self, forward: Forward, batch: Batch) -> Tensor:
        """Negative log-likelihood of the targets, ``[]`` float32; autocast is off here."""
        return ensemble_loss(forward, batch)

    def evaluate(self, model: WorldModel, transitions: Sequence[Transition]) -> Mapping[str, float]:
        """The agent's own decision metrics on held-out transitions; none by default."""
        del model, transitions
        return {}

    def build_job(self, context: RunContext, transitions: RecordedTransitions) -> TrainingJob:
        """Split by group, encode, and plan the training; the same job for the same input.

        A group keeps its part of the split in every run, so that a published model was never
        trained on what it is judged by later.

        Raises:
            InsufficientDataError: Too few transitions, held-out groups, or targets that vary.
        """
        data = prepare(self.spec(), deque(transitions, maxlen=self.newest_transitions))
        for problem in data.left_out():
            context.logger.warning("training_data_incomplete", problem=problem)
        self._data = data
        rows = len(data.train.features)
        batch_size = min(self.batch_size, rows)
        steps = min(self.training_steps, self.training_passes * rows // batch_size)
        plan = TrainingPlan(
            epochs=self.epochs,
            steps_per_epoch=max(1, steps // self.epochs),
            batch_size=batch_size,
            seed=context.seed,
            device=context.device,
        )
        shape = NetworkShape.of(data.encoder, data.codec)
        network = build_seeded(self.build_model, shape, context.seed)
        return training_job(data, network, plan, _best_epoch(context), self.loss)

    def publish(self, context: RunContext, model: Module, report: EvaluationReport) -> Publication:
        """Put the best of linear, ensemble and blend into use if the held-out groups say so.

        Raises:
            RuntimeError: `build_job` was not called before on this agent.
            ModelFileError: The weights of the run's best epoch are damaged.
            OSError: The disk does not take the model; the one before stays in use.
        """
        if self._data is None:
            raise RuntimeError("publish needs the data of build_job: call build_job first")
        _best_epoch(context).restore(model)
        folder = self.published_folder(context)
        verdict = judge(self._data, model, folder, self.build_model)
        world_model = WorldModel.of(verdict.candidate, verdict.metrics)
        own = self.evaluate(world_model, self._data.test.transitions)
        metrics = {**verdict.metrics, **own, "training_steps": float(report.steps)}
        world_model.metrics = dict(metrics)
        if verdict.published:
            world_model.save(folder)
        return Publication(published=verdict.published, reason=verdict.reason, metrics=metrics)

    def published_folder(self, context: RunContext) -> Path:
        """Where the model in use lies."""
        return context.agent_folder / "published"

    def published_model(self, context: RunContext) -> WorldModel | None:
        """The model in use; None if there is none or, with a warning, if it is unreadable."""
        try:
            return WorldModel.load(self.published_folder(context), self.build_model)
        except FileNotFoundError:
            return None
        except ModelFileError as error:
            context.logger.warning("published_model_unreadable", error=str(error))
            return None


def _best_epoch(context: RunContext) -> BestEpoch:
    return BestEpoch(context.run_folder / "best-epoch.pt")
