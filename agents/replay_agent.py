"""An agent without code: a file names the source of its records, its fields and its schedule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from infrastructure.agent_contract import (
    EvaluationReport,
    Publication,
    RunContext,
    Schedule,
    TrainingJob,
    Transition,
)
from infrastructure.agent_contract.agent import InsufficientDataError, RecordedTransitions
from infrastructure.agent_contract.transition import TransitionSpec
from infrastructure.files import read_model, write_model
from infrastructure.trajectories.record_source import (
    AgentDefinition,
    DatabaseSource,
    DefinitionError,
    RecordSource,
    collect_records,
    read_definition,
)
from infrastructure.world_model_agent import WorldModelAgent

if TYPE_CHECKING:
    from torch.nn import Module

CANNOT_RANK = "its records hold no action, so the model can predict, but not rank options"
PINNED_FILE = "definition.json"  # in the run's folder
_MOST_DEFINITION_BYTES = 1 << 24


class ReplayAgent(WorldModelAgent):
    """Gives a world model to any agent whose records arrive in a folder or in the replay buffer.

    Args:
        definition: The agent's file, ``NAME.toml`` in the folder ``agents.d`` of the home.

    Raises:
        DefinitionError: The file is missing or wrong; the message names the line.
    """

    def __init__(self, definition: Path | None = None) -> None:
        if definition is None:
            raise DefinitionError(
                "this agent needs its file in agents.d, which is missing: restore it"
            )
        self.name = definition.stem
        self._home = definition.parent.parent
        self._definition = read_definition(definition)
        self._source: RecordSource | DatabaseSource | None = None
        given = self._definition.training
        self.training_steps = given.steps or self.training_steps
        self.training_passes = given.passes or self.training_passes
        self.epochs = given.epochs or self.epochs
        self.patience = given.patience or self.patience
        self.batch_size = given.batch_size or self.batch_size
        self.newest_transitions = given.newest_transitions or self.newest_transitions
        self.recent_transitions = given.recent_transitions or self.recent_transitions
        self.recent_weight = given.recent_weight or self.recent_weight
        self.off_policy_gate = given.off_policy_gate or self.off_policy_gate

    def spec(self) -> TransitionSpec:
        """The fields that the definition declares."""
        return self._definition.transition_spec()

    def schedule(self) -> Schedule:
        """The schedule of the definition; the operator's setting wins."""
        return Schedule.parse(self._definition.schedule)

    def collect(self, context: RunContext) -> Iterator[Transition]:
        """Yield the records that have arrived in the source since the last run, each once.

        Raises:
            SourceFolderError: The folder is missing or cannot be listed.
            SourceServerError: The server does not answer.
        """
        table, folder = self._definition.source, context.agent_folder
        if table.kind == "buffer":  # other programs append to the replay buffer
            return
        if table.path is None:
            self._source = DatabaseSource.of_definition(
                self._definition, self.name, self._home, folder
            )
        else:
            path = self._home / table.path.expanduser()
            self._source = RecordSource.of_definition(self._definition, self.name, path, folder)
        yield from collect_records(self._source, context)

    def build_job(self, context: RunContext, transitions: RecordedTransitions) -> TrainingJob:
        """Remember how far the source was read, and plan the training; see `WorldModelAgent`.

        A run keeps the fields that it began with, though the file may change meanwhile.

        Raises:
            InsufficientDataError: Too few transitions, held-out groups, or targets that vary.
        """
        if self._source is not None:
            self._source.keep_positions()
        self._definition = self._pinned(context)
        try:
            return super().build_job(context, transitions)
        except InsufficientDataError as error:
            source = self._source
            if source is None or len(transitions):
                raise
            looked = source.report.looked_for(source.place, source.agents)
            raise InsufficientDataError(error.what, error.got, error.needed, looked) from error

    def publish(self, context: RunContext, model: Module, report: EvaluationReport) -> Publication:
        """As for every world model; without actions the reason says that it cannot rank them."""
        publication = super().publish(context, model, report)
        if self.spec().action:
            return publication
        return replace(publication, reason=f"{publication.reason}; {CANNOT_RANK}")

    def _pinned(self, context: RunContext) -> AgentDefinition:
        """The definition that this run, or the run that it repeats, began with."""
        path = (context.repeats or context.run_folder) / PINNED_FILE
        try:
            pinned = read_model(path, AgentDefinition, limit=_MOST_DEFINITION_BYTES)
        except FileNotFoundError:
            write_model(context.run_folder / PINNED_FILE, self._definition)
            return self._definition
        if pinned != self._definition:
            consequence = "this run keeps the one that it began with; the next run takes the new"
            context.logger.info("definition_changed", consequence=consequence)
        return pinned
