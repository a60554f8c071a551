"""Assigns groups of transitions to train, calibration or test data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
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


def parts_of(
    split: Literal["group", "time"], groups: Iterable[str], seed: int = 0
) -> dict[str, Part]:
    """Return the part of each group by the rule that a `TransitionSpec` names.

    ``group`` is `part_of`. With ``time`` the test groups are those that appear last in *groups*,
    and the calibration groups those before them. As newer groups are recorded, or the oldest
    dropped, a group then moves from test to calibration and from there to training, never back. So
    a model published earlier was not trained on the groups that it is tested on now. This holds if
    the rows of a group lie together: the first one that is left decides.
    """
    ordered = list(dict.fromkeys(groups))
    if split == "group":
        return {group: part_of(group, seed) for group in ordered}
    calibration = round(TRAIN_SHARE * len(ordered))
    test = round((TRAIN_SHARE + CALIBRATION_SHARE) * len(ordered))
    names: tuple[Part, ...] = ("train", "calibration", "test")
    return {
        group: names[(place >= calibration) + (place >= test)]
        for place, group in enumerate(ordered)
    }


def split_rows(
    split: Literal["group", "time"], groups: Sequence[str], seed: int = 0
) -> dict[Part, list[int]]:
    """Return the row numbers of each part, in ascending order; see `parts_of`.

    Args:
        groups: Group of each row, in the order of recording.
    """
    parts = parts_of(split, groups, seed)
    rows: dict[Part, list[int]] = {"train": [], "calibration": [], "test": []}
    for row, group in enumerate(groups):
        rows[parts[group]].append(row)
    return rows
