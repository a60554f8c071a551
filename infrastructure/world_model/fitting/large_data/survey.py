"""The first pass over much data: which transitions are usable, and bounded samples of each part."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import TypeAlias

import numpy as np

from infrastructure.agent_contract.transition import Transition, TransitionSpec
from infrastructure.trajectories import Part
from infrastructure.trajectories.data_checks import Finding, check_data
from infrastructure.trajectories.split import part_of, parts_of
from infrastructure.world_model.fitting.training_data import UsabilityCheck, require_enough

SAMPLED_ROWS = 200_000
"""Training rows that statistics, vocabularies and the linear model are fitted on; at random."""

HELD_OUT_ROWS = 100_000
"""Rows of calibration and of test data; whole groups at random, but for those of more than a tenth
of this, which lose their last rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleSizes:
    """Most rows of each sample; see `SAMPLED_ROWS` and `HELD_OUT_ROWS`."""

    train: int = SAMPLED_ROWS
    held_out: int = HELD_OUT_ROWS


Numbered: TypeAlias = tuple[int, Transition]
"""A transition, and its number among the usable ones."""

PartOf: TypeAlias = Callable[[str], Part]
"""Function from a group to its part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What the first pass found.

    Attributes:
        samples: Transitions of each part, at most as many as its `SampleSizes`.
        transitions: Number of transitions read.
        training_rows: Number of usable ones for training.
        unusable: See `TrainingData`.
    """

    samples: Mapping[Part, Sequence[Numbered]]
    transitions: int
    training_rows: int
    unusable: Mapping[str, int]

    def check(self, spec: TransitionSpec) -> list[Finding]:
        """Check that the samples suffice to train and evaluate on; find what makes them doubtful.

        Raises:
            InsufficientDataError: There is too little; the message has the reasons of exclusions.
        """
        parts: list[tuple[int, Transition, Part]] = sorted(
            ((number, row, part) for part, rows in self.samples.items() for number, row in rows),
            key=lambda each: each[0],
        )
        recorded = [row for _, row, _ in parts]
        rows: dict[Part, list[int]] = {part: [] for part in self.samples}
        for place, (_, _, part) in enumerate(parts):
            rows[part].append(place)
        require_enough(
            self.training_rows,
            {
                part: len({recorded[row].group for row in rows[part]})
                for part in ("calibration", "test")
            },
            self.unusable,
            [row.group for row in recorded],
        )
        return check_data(spec, recorded, rows)


def part_function(
    spec: TransitionSpec, transitions: Callable[[], Iterable[Transition]], split_seed: int
) -> PartOf:
    """Return the function that splits by the rule of *spec*; see `parts_of`.

    Args:
        transitions: Function that reads the transitions; a split by time reads them once.

    Raises:
        TypeError: Something in the transitions is not a `Transition`.
    """
    if spec.split == "group":
        # a group mostly has many rows in succession
        return lru_cache(maxsize=1 << 12)(partial(part_of, seed=split_seed))
    usable = UsabilityCheck(spec).usable(transitions())
    groups = (transition.group for transition in chain.from_iterable(usable))
    return parts_of(spec.split, groups, split_seed).__getitem__


def survey(
    spec: TransitionSpec,
    transitions: Iterable[Transition],
    part_of_group: PartOf,
    sizes: SampleSizes,
) -> Survey:
    """Read *transitions* once; the same ones give the same samples.

    Raises:
        TypeError: Something in *transitions* is not a `Transition`.
    """
    check, train = UsabilityCheck(spec), _RowSample(sizes.train)
    held_out: dict[Part, _GroupSample] = {
        "calibration": _GroupSample(sizes.held_out),
        "test": _GroupSample(sizes.held_out),
    }
    number = 0
    for usable in check.usable(transitions):
        training_rows = list[Numbered]()
        for transition in usable:
            part = part_of_group(transition.group)
            if part == "train":
                training_rows.append((number, transition))
            else:
                held_out[part].add(number, transition)
            number += 1
        train.add(training_rows)
    return Survey(
        samples={"train": train.rows(), **{name: each.rows() for name, each in held_out.items()}},
        transitions=number + sum(check.unusable.values()),
        training_rows=train.seen,
        unusable=check.unusable,
    )


class _RowSample:
    """So many rows of a stream at random (Vitter's algorithm R), in their order."""

    def __init__(self, most: int) -> None:
        self.seen = 0
        self._most = most
        self._sample: list[Numbered] = []
        self._random = np.random.default_rng(0)

    def add(self, rows: Sequence[Numbered]) -> None:
        draws = self._random.random(len(rows))
        for row, draw in zip(rows, draws.tolist(), strict=True):
            if self.seen < self._most:
                self._sample.append(row)
            else:
                place = int(draw * (self.seen + 1))
                if place < self._most:
                    self._sample[place] = row
            self.seen += 1

    def rows(self) -> list[Numbered]:
        return sorted(self._sample, key=lambda numbered: numbered[0])


class _GroupSample:
    """Whole groups with at most so many rows: those whose names have the lowest hashes.

    A group that would have more than a tenth of all rows has its first ones.
    """

    def __init__(self, most: int) -> None:
        self._most, self._most_of_group = most, max(1, most // 10)
        self._kept: dict[str, list[Numbered]] = {}
        self._highest: list[tuple[int, str]] = []  # a heap of negated hashes
        self._count = 0
        self._below = 1 << 64

    def add(self, number: int, row: Transition) -> None:
        rows = self._kept.get(row.group)
        if rows is None:
            mark = _mark(row.group)
            if mark >= self._below:
                return
            rows = self._kept[row.group] = []
            heapq.heappush(self._highest, (-mark, row.group))
        if len(rows) >= self._most_of_group:
            return
        rows.append((number, row))
        self._count += 1
        while self._count > self._most:
            negated, group = heapq.heappop(self._highest)
            self._below = -negated
            self._count -= len(self._kept.pop(group))

    def rows(self) -> list[Numbered]:
        """The rows in their order."""
        every = chain.from_iterable(self._kept.values())
        return sorted(every, key=lambda numbered: numbered[0])


def _mark(group: str) -> int:
    name = group.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(name, digest_size=8, person=b"held-out").digest()
    return int.from_bytes(digest, "big")
