"""Paired bootstrap over held-out groups: is one model's mean loss lower than another's?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.measuring.spread import Interval
from benchmarks.world_model.metrics import Numbers

RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupLosses:
    """Losses of several models on the same rows, by group.

    Attributes:
        groups: Name of each group, ``[G]``; the same group of another seed is drawn together.
        rows: Rows of each group, ``[G]``.
        sums: Sum of the losses of each group, ``[G]``, by model.
    """

    groups: Sequence[str]
    rows: Numbers
    sums: Mapping[str, Numbers]

    @classmethod
    def of_rows(cls, groups: Sequence[str], losses: Mapping[str, Numbers]) -> GroupLosses:
        """Add up the *losses* of the rows of each group."""
        names, index_N = np.unique(np.array(groups), return_inverse=True)
        return cls(
            groups=names.tolist(),
            rows=np.bincount(index_N).astype(np.float64),
            sums={
                name: np.bincount(index_N, weights=loss_N).astype(np.float64)
                for name, loss_N in losses.items()
            },
        )

    def joined(self, other: GroupLosses) -> GroupLosses:
        """Both of them; models that only one has are left out."""
        models = self.sums.keys() & other.sums.keys()
        return GroupLosses(
            groups=[*self.groups, *other.groups],
            rows=np.concatenate([self.rows, other.rows]),
            sums={name: np.concatenate([self.sums[name], other.sums[name]]) for name in models},
        )

    def figure(self, model: str, reduce: Callable[[Numbers], Numbers]) -> float:
        """Mean loss of *model*, after *reduce*."""
        return float(reduce(np.array([self.sums[model].sum() / self.rows.sum()]))[0])

    def difference(
        self, model: str, rival: str, reduce: Callable[[Numbers], Numbers], seed: int = 0
    ) -> Interval:
        """Figure of *model* minus that of *rival*, with its 95 % interval."""
        names, index = np.unique(np.array(self.groups), return_inverse=True)
        generator = np.random.default_rng(seed)
        count = len(names)
        rows, mine, theirs = (
            np.bincount(index, weights=values)
            for values in (self.rows, self.sums[model], self.sums[rival])
        )
        drawn = np.empty(RESAMPLES)
        for number in range(RESAMPLES):
            weight = np.bincount(generator.integers(count, size=count), minlength=count)
            means = np.array([weight @ mine, weight @ theirs]) / (weight @ rows)
            reduced = reduce(means)
            drawn[number] = reduced[0] - reduced[1]
        low, high = np.quantile(drawn, [0.025, 0.975])
        figure = self.figure(model, reduce) - self.figure(rival, reduce)
        return Interval(figure=figure, low=float(low), high=float(high))
