"""Which part of the data a group belongs to: train, calibration or test."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

Part = Literal["train", "calibration", "test"]

TRAIN_SHARE = 0.6
CALIBRATION_SHARE = 0.2
"""Generous shares are held out, so that thirty groups nearly always leave two of each part."""


def part_of(group: str, seed: int = 0) -> Part:
    """Place *group*, by a hash of its name and *seed*: the same part in every run.

    A group never changes its part as more data is recorded, so that a model published earlier
    was never trained on what it is tested on now.
    """
    digest = hashlib.blake2b(
        group.encode("utf-8", "surrogatepass"), digest_size=8, salt=seed.to_bytes(8, "big")
    ).digest()
    share = int.from_bytes(digest, "big") / 2**64
    if share < TRAIN_SHARE:
        return "train"
    return "calibration" if share < TRAIN_SHARE + CALIBRATION_SHARE else "test"


def split_by_group(groups: Sequence[str], seed: int = 0) -> dict[Part, list[int]]:
    """Give the rows of each part, in order, for the group of each row."""
    parts = {group: part_of(group, seed) for group in set(groups)}
    rows: dict[Part, list[int]] = {"train": [], "calibration": [], "test": []}
    for row, group in enumerate(groups):
        rows[parts[group]].append(row)
    return rows
