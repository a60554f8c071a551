"""Where the batches of a training come from, as the loop sees it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from infrastructure.agent_contract import TrainingJob
from infrastructure.agent_contract.training_job import Batch
from infrastructure.training.precision.roles import RolePrecisions
from infrastructure.training.rounds.on_policy import GeneratedRound


class Rounds(Protocol):
    """Gives the batches of one round after the other; saved and restored with the training.

    Attributes:
        per_epoch: Rounds between two evaluations.
        generates: Whether `begin` generates batches with the model, which takes long.
        generated: The round that the last `begin` has generated, or None; see `OnPolicyRounds`.
        batches: Those generated for the round under way, or the last one.
    """

    per_epoch: int
    generates: bool
    generated: GeneratedRound | None
    batches: list[Batch]

    def set_precision(self, precisions: RolePrecisions) -> None:
        """Compute with the copies of the weights in these types from now on."""

    def begin(self, round_: int) -> Iterable[Batch]:
        """Return the batches of *round_*, counted from 0 over all epochs.

        Every rank must call it, at a step boundary.
        """

    def synchronize(self) -> None:
        """Take over the trained weights before the next round: they were restored."""

    def state_dict(self) -> dict[str, Any] | None:
        """What is needed to continue in the middle of a round; None if nothing is."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class DatasetRounds:
    """The rounds of a `TrainingJob`: each is one epoch of its batches."""

    per_epoch = 1
    generates = False

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self.generated: GeneratedRound | None = None
        self.batches: list[Batch] = []

    def set_precision(self, precisions: RolePrecisions) -> None:
        """Nothing to change: recorded data need no copy of the weights."""

    def begin(self, round_: int) -> Iterable[Batch]:
        """The batches of epoch *round_*."""
        return self._job.batches(round_)

    def synchronize(self) -> None:
        """Nothing to take over."""

    def state_dict(self) -> dict[str, Any] | None:
        """None: an epoch's batches are a function of its number."""
        return None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""
