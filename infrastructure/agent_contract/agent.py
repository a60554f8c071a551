"""The protocol every agent meets, and the names it may carry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from infrastructure.agent_contract.run_context import RunContext
from infrastructure.agent_contract.schedule import Schedule
from infrastructure.agent_contract.training_job import EvaluationReport, Publication, TrainingJob
from infrastructure.agent_contract.transition import Transition

if TYPE_CHECKING:
    from pydantic import BaseModel
    from torch.nn import Module

CONTRACT_VERSION = 1
AGENT_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")


class RecordedTransitions(Protocol):
    """The read side of a replay buffer, frozen at the moment training began."""

    def __iter__(self) -> Iterator[Transition]:
        """All transitions, in the order they were recorded."""

    def __len__(self) -> int:
        """How many there are."""


@runtime_checkable
class Agent(Protocol):
    """What the worker calls. Most authors subclass `WorldModelAgent` instead of writing this.

    Attributes:
        name: Equal to the entry point's name; ``[a-z][a-z0-9-]{0,31}``.
        contract_version: `CONTRACT_VERSION` that the agent was written for.
    """

    name: str
    contract_version: int

    def schedule(self) -> Schedule:
        """Default schedule; the operator's setting wins."""

    def settings_model(self) -> type[BaseModel] | None:
        """The agent's own settings, or None."""

    def collect(self, context: RunContext) -> Iterator[Transition]:
        """Yield new transitions within ``context.budget``; each is recorded as it comes."""

    def build_job(self, context: RunContext, transitions: RecordedTransitions) -> TrainingJob:
        """Turn recorded transitions into a training job.

        Must give the same job for the same context and transitions: a resumed attempt calls it
        again.

        Raises:
            InsufficientDataError: There is too little to train on; the run succeeds unpublished.
        """

    def publish(self, context: RunContext, model: Module, report: EvaluationReport) -> Publication:
        """Put the trained model into use if it is better, and say why or why not."""


class InsufficientDataError(ValueError):
    """Too few transitions or groups to train and evaluate on.

    Args:
        what: What there is too little of.
        got: How many there are.
        needed: How many it takes.
    """

    def __init__(self, what: str, got: int, needed: int) -> None:
        super().__init__(f"{got} {what} recorded, {needed} needed: let the agent collect more")
        self.what, self.got, self.needed = what, got, needed
