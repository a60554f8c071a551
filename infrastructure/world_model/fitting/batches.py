"""Deterministic training batches: the same step always gets the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from infrastructure.world_model.fitting.training_data import DataPart
from infrastructure.world_model.networks.loss import TARGET_PREFIX


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchStream:
    """An endless sequence of shuffled passes over the rows, cut into epochs of equal length.

    Each pass contains every row once; passes may extend across epochs.

    Attributes:
        part: Rows to draw from.
        batch_size: Rows per batch.
        steps_per_epoch: Batches per epoch.
        seed: Seed of the shuffles.
    """

    part: DataPart
    batch_size: int
    steps_per_epoch: int
    seed: int

    def epoch(self, epoch: int) -> EpochBatches:
        """Return the batches of *epoch*, the same in every call."""
        return EpochBatches(self, epoch)

    def rows(self, step: int) -> Tensor:
        """Return the row numbers of the batch of *step*, ``[batch_size]`` int64."""
        count = len(self.part.features)
        chosen: list[Tensor] = []
        position, end = step * self.batch_size, (step + 1) * self.batch_size
        while position < end:
            pass_number, start = divmod(position, count)
            stop = min(count, start + end - position)
            chosen.append(_shuffle(self.seed, pass_number, count)[start:stop])
            position += stop - start
        return torch.cat(chosen)

    def batch(self, step: int) -> dict[str, Tensor]:
        """Return inputs and targets of *step*; the first tensor has one row per sample."""
        rows = self.rows(step)
        batch = self.part.features.take(rows).inputs()
        for name, target in self.part.targets.items():
            batch[TARGET_PREFIX + name] = target[rows]
        return batch


class EpochBatches:
    """One epoch of a `BatchStream`; can be iterated repeatedly and indexed by batch."""

    def __init__(self, stream: BatchStream, epoch: int) -> None:
        self._stream, self._epoch = stream, epoch

    def __len__(self) -> int:
        return self._stream.steps_per_epoch

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return self._stream.batch(self._epoch * len(self) + number)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return map(self.__getitem__, range(len(self)))


@lru_cache(maxsize=4)
def _shuffle(seed: int, pass_number: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed((seed * 1_000_003 + pass_number) % 2**63)
    return torch.randperm(count, generator=generator)
