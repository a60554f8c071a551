"""Assigns groups of transitions to train, calibration or test data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal

Part = Literal["train", "calibration", "test"]

TRAIN_SHARE = 0.6
CALIBRATION_SHARE = 0.2
"""Share of calibration groups; the rest are test groups."""

ENOUGH_GROUPS = 30
"""With so many, each part nearly always has at least two."""

MIN_TRAINING_TRANSITIONS = 100
MIN_HELD_OUT_GROUPS = 2
"""Needed of calibration groups and of test groups; a spread between groups takes two."""


def part_of(group: str, seed: int = 0) -> Part:
    """Assign *group* to a part by a hash of its name and *seed*, alike in every run.

    A group keeps its part as more data is recorded, so a model published earlier was not trained
    on the groups that it is tested on now.
    """
    digest = hashlib.blake2b(
        group.encode("utf-8", "surrogatepass"), digest_size=8, salt=seed.to_bytes(8, "big")
    ).digest()
    share = int.from_bytes(digest, "big") / 2**64
    if share < TRAIN_SHARE:
        return "train"
    return "calibration" if share < TRAIN_SHARE + CALIBRATION_SHARE else "test"


def split_by_group(groups: Sequence[str], seed: int = 0) -> dict[Part, list[int]]:
    """Return the row numbers of each part, in ascending order; *groups* holds each row's group."""
    return _rows_of_parts(groups, {group: part_of(group, seed) for group in set(groups)})


def split_by_time(groups: Sequence[str]) -> dict[Part, list[int]]:
    """As `split_by_group`, but the test groups are those that appear last, calibration before them.

    As newer groups are recorded, or the oldest dropped, a group moves from test to calibration and
    from there to training, never back. So a model published earlier was not trained on the groups
    that it is tested on now. This holds if the rows of a group lie together: all of them are in the
    part of the first one that is left.
    """
    ordered = list(dict.fromkeys(groups))
    ends = (
        round(TRAIN_SHARE * len(ordered)),
        round((TRAIN_SHARE + CALIBRATION_SHARE) * len(ordered)),
    )
    names: tuple[Part, ...] = ("train", "calibration", "test")
    parts = {group: names[sum(place >= end for end in ends)] for place, group in enumerate(ordered)}
    return _rows_of_parts(groups, parts)


def split_rows(
    split: Literal["group", "time"], groups: Sequence[str], seed: int = 0
) -> dict[Part, list[int]]:
    """Split by the rule that a `TransitionSpec` names; *seed* is that of `split_by_group`."""
    return split_by_time(groups) if split == "time" else split_by_group(groups, seed)


def _rows_of_parts(groups: Sequence[str], parts: Mapping[str, Part]) -> dict[Part, list[int]]:
    rows: dict[Part, list[int]] = {"train": [], "calibration": [], "test": []}
    for row, group in enumerate(groups):
        rows[parts[group]].append(row)
    return rows
