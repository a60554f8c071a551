"""Assigns groups of transitions to train, calibration or test data."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

Part = Literal["train", "calibration", "test"]

TRAIN_SHARE = 0.6
CALIBRATION_SHARE = 0.2
"""Share of calibration groups; the rest are test groups. With these shares, thirty groups nearly
always give at least two of each part."""

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
    parts = {group: part_of(group, seed) for group in set(groups)}
    rows: dict[Part, list[int]] = {"train": [], "calibration": [], "test": []}
    for row, group in enumerate(groups):
        rows[parts[group]].append(row)
    return rows
