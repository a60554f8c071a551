"""The protocol that every agent implements, and the form of its name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from infrastructure.agent_contract.run_context import RunContext
from infrastructure.agent_contract.schedule import Schedule
from infrastructure.agent_contract.training_job import EvaluationReport, Job, Publication
from infrastructure.agent_contract.transition import Transition

if TYPE_CHECKING:
    from pydantic import BaseModel
    from torch.nn import Module

CONTRACT_VERSION = 1
AGENT_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")


class RecordedTransitions(Protocol):
    """The recorded transitions, as they were when training began."""

    def __iter__(self) -> Iterator[Transition]:
        """Iterate over all transitions in the order in which they were recorded."""

    def __len__(self) -> int:
        """Number of transitions."""


@runtime_checkable
class Agent(Protocol):
    """What the worker calls. Most authors subclass `WorldModelAgent` instead of writing this.

    Attributes:
        name: Name of the entry point; ``[a-z][a-z0-9-]{0,31}``.
        contract_version: The `CONTRACT_VERSION` for which the agent was written.
    """

    name: str
    contract_version: int

    def schedule(self) -> Schedule:
        """Return the default schedule; the operator's setting wins."""

    def settings_model(self) -> type[BaseModel] | None:
        """Return the model of the agent's own settings, or None if it has none."""

    def collect(self, context: RunContext) -> Iterator[Transition]:
        """Yield new transitions within ``context.budget``; each is recorded at once."""

    def build_job(self, context: RunContext, transitions: RecordedTransitions) -> Job:
        """Turn recorded transitions into a `TrainingJob`, or return an `OnPolicyJob`.

        Must return the same job for the same context and transitions, because a resumed attempt
        calls it again.

        Raises:
            InsufficientDataError: There is too little data. The run publishes nothing; it succeeds,
                or ends as ``no_data`` if no transition can be used.
        """

    def publish(self, context: RunContext, model: Module, report: EvaluationReport) -> Publication:
        """Publish the trained model if it is better, and return the decision and its reason."""


class MisconfiguredError(ValueError):
    """An agent cannot run as it is configured, so that no further attempt could help.

    An agent may raise it, or a subclass, anywhere: its run ends at once. The message says what is
    wrong, where, and what to do.
    """


class InsufficientDataError(ValueError):
    """Too few transitions or groups to train and evaluate on.

    Args:
        what: Kind of data: ``transitions`` or ``groups``.
        got: Number recorded.
        needed: Number required.
        why: Why recorded data did not count, if it did not.
        problem: The message, where it is another one than that more has to be collected.
    """

    def __init__(
        self,
        what: str,
        got: int,
        needed: int,
        why: str = "",
        *,
        problem: str = "",
    ) -> None:
        message = problem or f"{got} {what} recorded, {needed} needed: let the agent collect more"
        super().__init__(f"{message}; {why}" if why else message)
        self.what, self.got, self.needed, self.problem = what, got, needed, problem
