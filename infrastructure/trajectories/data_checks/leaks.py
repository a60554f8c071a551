"""Single inputs that predict a target almost perfectly: perhaps the outcome itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infrastructure.agent_contract.transition import Transition, TransitionSpec
from infrastructure.trajectories.data_checks.columns import (
    Column,
    Numbers,
    observation_columns,
    target_columns,
)
from infrastructure.trajectories.data_checks.finding import Finding

EXPLAINED = 0.98
"""Share of the errors of the base rate that a leak takes away, in groups it was not fitted on."""

_PERSISTENT = 0.05  # share of the base rate's errors: a state that keeps within has no leaks
_MOST_BINS = 1024
_ROWS_PER_BIN = 5
_SMALLEST_COUNT = 10  # held-out rows that the base rate gets wrong


def find_leaks(
    spec: TransitionSpec, learned: Sequence[Transition], held_out: Sequence[Transition]
) -> list[Finding]:
    """Find fields of the observation that predict a target almost perfectly by themselves.

    Labels predict the target's most frequent label or mean of the training rows that have them,
    numbers that of their bin. A number is scored by its rank, so that a few large ones do not
    decide. Where the target is a field of the observation as well, its value before the action has
    to be beaten like the base rate: others tell of a state that hardly changes, too. What an agent
    does, what it saw in earlier steps, and a state that is predicted itself are known before the
    outcome: such fields are not asked.
    """
    rows = [*learned, *held_out]
    lessons = [
        lesson
        for column in target_columns(spec, rows)
        if (lesson := _Lesson.of(column, len(learned))) is not None
    ]
    errors: dict[tuple[str, str], float] = {}
    persistent: dict[str, float] = {}
    for column in observation_columns(spec, rows, spec.current_fields):
        bins = _bins(column, len(learned))
        for lesson in lessons:
            title = lesson.target.title
            if column.title == f"observation.{title}":
                persistent[title] = lesson.error(*bins)
            elif column.field not in spec.targets:
                errors[column.title, title] = lesson.error(*bins)
    return [
        finding
        for lesson in lessons
        for finding in _findings(lesson, errors, persistent.get(lesson.target.title))
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lesson:
    """A target to predict from one field.

    Attributes:
        outcomes: Numbers of labels, or ranks of numbers from 0 to 1, ``[N]``; the training rows
            come first.
        rows: Number of training rows.
        labels: Number of labels; 0 if the target is a number.
        base_error: Error of the base rate on the held-out rows.
    """

    target: Column
    outcomes: NDArray[Any]
    rows: int
    labels: int
    base_error: float

    @classmethod
    def of(cls, target: Column, rows: int) -> _Lesson | None:
        """The lesson of *target*; None if too few held-out rows differ from the most frequent."""
        outcomes: NDArray[Any]
        if target.is_number:
            learned = np.sort(target.values[:rows])
            below = np.searchsorted(learned, target.values, side="left")
            outcomes = (below + np.searchsorted(learned, target.values, side="right")) / (2 * rows)
            labels = 0
        else:
            distinct, outcomes = np.unique(target.values, return_inverse=True)
            labels = len(distinct)
        _, counts = np.unique(outcomes[rows:], return_counts=True)
        if counts.sum() - counts.max() < _SMALLEST_COUNT:
            return None
        lesson = cls(target=target, outcomes=outcomes, rows=rows, labels=labels, base_error=0.0)
        one_bin = np.zeros(len(outcomes), dtype=np.int64)
        error = lesson.error(one_bin, 1)
        return cls(target=target, outcomes=outcomes, rows=rows, labels=labels, base_error=error)

    def error(self, bins: NDArray[np.int64], count: int) -> float:
        """Error on the held-out rows of the best prediction for each bin of the training rows.

        Args:
            bins: Bin of each row, ``[N]``.
            count: Number of bins; those without training rows predict the base rate.
        """
        learned, outcomes = bins[: self.rows], self.outcomes[: self.rows]
        rows_B = np.bincount(learned, minlength=count)
        if self.labels:
            pairs = np.bincount(learned * self.labels + outcomes, minlength=count * self.labels)
            best = pairs.reshape(count, self.labels).argmax(1)
            base = np.bincount(outcomes).argmax()
        else:
            best = np.bincount(learned, weights=outcomes, minlength=count) / np.maximum(rows_B, 1)
            base = outcomes.mean()
        predicted = np.where(rows_B > 0, best, base)[bins[self.rows :]]
        actual = self.outcomes[self.rows :]
        wrong = predicted != actual if self.labels else (predicted - actual) ** 2
        return float(wrong.mean())


def _findings(
    lesson: _Lesson, errors: Mapping[tuple[str, str], float], persistent: float | None
) -> Iterator[Finding]:
    reference = lesson.base_error
    if persistent is not None:
        reference = min(reference, persistent)
    if reference < _PERSISTENT * lesson.base_error:
        return
    name = lesson.target.title
    leaks = {
        field: error
        for (field, target), error in errors.items()
        if target == name and error <= (1.0 - EXPLAINED) * reference
    }
    for field, error in leaks.items():
        if lesson.labels:
            score, base = 1.0 - error, 1.0 - lesson.base_error
            how = f"accuracy {score:.1%} in held-out groups, base rate {base:.1%}"
        else:
            score, base = 1.0 - error / lesson.base_error, 0.0
            how = f"R² of ranks {score:.3f} in held-out groups"
        yield Finding(
            kind="leak",
            fields=(name, field),
            problem=f"{field} alone predicts {name} almost perfectly ({how})",
            remedy=f"remove {field} from the inputs if it is known only after the action",
            figures={"score": score, "base_rate": base},
        )


def _bins(column: Column, rows: int) -> tuple[NDArray[np.int64], int]:
    """Bin of each row and the number of bins; missing values have a bin of their own."""
    values = column.values
    if not column.is_number:
        distinct, bins = np.unique(values, return_inverse=True)
        return bins, len(distinct)
    known = _known(values[:rows])
    count = min(_MOST_BINS, max(2, len(known) // _ROWS_PER_BIN))
    edges = np.unique(np.quantile(known, np.linspace(0, 1, count))) if known.size else known
    bins = np.where(np.isnan(values), len(edges) + 1, np.searchsorted(edges, values, side="right"))
    return bins, len(edges) + 2


def _known(values: Numbers) -> Numbers:
    return values[~np.isnan(values)]
