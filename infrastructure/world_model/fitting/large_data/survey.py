"""The first pass over much data: which transitions are usable, and bounded samples of each part."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from infrastructure.agent_contract.transition import Transition, TransitionSpec
from infrastructure.trajectories import Part
from infrastructure.trajectories.split import part_of
from infrastructure.world_model.fitting.training_data import UsabilityCheck

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What the first pass found.

    Attributes:
        samples: Transitions of each part, at most as many as its `SampleSizes`.
        transitions: Number of transitions read.
        training_rows: Number of usable ones for training.
        held_out_groups: Number of sampled groups of calibration and test data.
        unusable: See `TrainingData`.
    """

    samples: Mapping[Part, Sequence[Transition]]
    transitions: int
    training_rows: int
    held_out_groups: Mapping[Part, int]
    unusable: Mapping[str, int]


def survey(
    spec: TransitionSpec, transitions: Iterable[Transition], split_seed: int, sizes: SampleSizes
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
    usable_rows = 0
    for usable in check.usable(transitions):
        usable_rows += len(usable)
        training_rows = []
        for transition in usable:
            part = part_of_recent(transition.group, split_seed)
            if part == "train":
                training_rows.append(transition)
            else:
                held_out[part].add(transition)
        train.add(training_rows)
    return Survey(
        samples={"train": train.rows(), **{name: each.rows() for name, each in held_out.items()}},
        transitions=usable_rows + sum(check.unusable.values()),
        training_rows=train.seen,
        held_out_groups={part: each.groups for part, each in held_out.items()},
        unusable=check.unusable,
    )


@lru_cache(maxsize=1 << 12)
def part_of_recent(group: str, seed: int) -> Part:
    """Return `part_of`; a group mostly has many rows in succession."""
    return part_of(group, seed)


class _RowSample:
    """So many rows of a stream at random (Vitter's algorithm R), in their order."""

    def __init__(self, most: int) -> None:
        self.seen = 0
        self._most = most
        self._sample: list[tuple[int, Transition]] = []
        self._random = np.random.default_rng(0)

    def add(self, rows: Sequence[Transition]) -> None:
        draws = self._random.random(len(rows))
        for row, draw in zip(rows, draws.tolist(), strict=True):
            if self.seen < self._most:
                self._sample.append((self.seen, row))
            else:
                place = int(draw * (self.seen + 1))
                if place < self._most:
                    self._sample[place] = (self.seen, row)
            self.seen += 1

    def rows(self) -> list[Transition]:
        return [row for _, row in sorted(self._sample, key=lambda numbered: numbered[0])]


class _GroupSample:
    """Whole groups with at most so many rows: those whose names have the lowest hashes.

    A group that would have more than a tenth of all rows has its first ones.
    """

    def __init__(self, most: int) -> None:
        self._most, self._most_of_group = most, max(1, most // 10)
        self._kept: dict[str, list[Transition]] = {}
        self._highest: list[tuple[int, str]] = []  # a heap of negated hashes
        self._count = 0
        self._below = 1 << 64

    @property
    def groups(self) -> int:
        return len(self._kept)

    def add(self, row: Transition) -> None:
        rows = self._kept.get(row.group)
        if rows is None:
            mark = _mark(row.group)
            if mark >= self._below:
                return
            rows = self._kept[row.group] = []
            heapq.heappush(self._highest, (-mark, row.group))
        if len(rows) >= self._most_of_group:
            return
        rows.append(row)
        self._count += 1
        while self._count > self._most:
            negated, group = heapq.heappop(self._highest)
            self._below = -negated
            self._count -= len(self._kept.pop(group))

    def rows(self) -> list[Transition]:
        return [row for rows in self._kept.values() for row in rows]


def _mark(group: str) -> int:
    name = group.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(name, digest_size=8, person=b"held-out").digest()
    return int.from_bytes(digest, "big")
