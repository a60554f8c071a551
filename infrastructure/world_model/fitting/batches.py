"""The batches that a training draws, from rows in memory or in memory-mapped files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from infrastructure.trajectories.encoding import Features
from infrastructure.trajectories.encoding.features import split_rows
from infrastructure.world_model.fitting.mapped_rows import MappedRows, ReadBuffers, Span
from infrastructure.world_model.fitting.training_data import DataPart
from infrastructure.world_model.networks.loss import TARGET_PREFIX

_BLOCK_ROWS = 256  # at most, that lie together in a file and are read together
_BLOCK_BYTES = 1 << 14  # at most, unless a row has more
_WINDOW_BLOCKS = 256  # 4 MiB, which fit in the processor's cache: twice as fast as 16 MiB
_WINDOW_BATCHES = 8  # at least, so that few rows are left out

_GATHERED_ROWS = 2048  # at once, at least: more cost memory, fewer cost time
_GATHERED_BYTES = 1 << 20  # at once, if more rows fit: a step empties the caches between two times


class Batches(Protocol):
    """An endless sequence of batches, cut into epochs; the same step, the same batch."""

    @property
    def steps_per_epoch(self) -> int:
        """Batches per epoch."""

    @property
    def batches_together(self) -> int:
        """Number of batches that are read at once."""

    def batches(self, step: int, steps: int) -> Iterator[dict[str, Tensor]]:
        """Yield inputs and targets of so many *steps* from *step* on."""

    def epoch(self, epoch: int) -> EpochBatches:
        """Return the batches of *epoch*, the same in every call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchStream:
    """An endless sequence of shuffled passes over the rows, cut into epochs of equal length.

    Each pass contains every row once, and the newest ones as often as they weigh; passes may extend
    across epochs.

    Attributes:
        part: Rows to draw from.
        batch_size: Rows per batch.
        steps_per_epoch: Batches per epoch.
        seed: Seed of the shuffles.
        recent: Number of the newest rows, which are the last ones, that weigh more.
        recent_weight: How often a pass contains each of these.
    """

    part: DataPart
    batch_size: int
    steps_per_epoch: int
    seed: int
    recent: int = 0
    recent_weight: int = 1

    @property
    def batches_together(self) -> int:
        """Number of batches whose rows are gathered at once."""
        part = self.part
        tensors = [*part.features.inputs().values(), *part.targets.values()]
        row_bytes = sum(tensor.nbytes for tensor in tensors) / len(part.features)
        return batches_together(row_bytes, self.batch_size)

    def epoch(self, epoch: int) -> EpochBatches:
        """Return the batches of *epoch*, the same in every call."""
        return EpochBatches(self, epoch)

    def rows(self, step: int, steps: int = 1) -> Tensor:
        """Return the row numbers of so many *steps* from *step* on.

        Returns:
            ``[steps * batch_size]`` int64, one batch after the other.
        """
        rows = len(self.part.features)
        recent = min(self.recent, rows)
        count = rows + recent * (self.recent_weight - 1)
        chosen: list[Tensor] = []
        position, end = step * self.batch_size, (step + steps) * self.batch_size
        while position < end:
            pass_number, start = divmod(position, count)
            stop = min(count, start + end - position)
            chosen.append(_shuffle(self.seed, pass_number, count)[start:stop])
            position += stop - start
        drawn = torch.cat(chosen)
        if count == rows:
            return drawn
        return torch.where(drawn < rows, drawn, rows - recent + (drawn - rows) % recent)

    def batches(self, step: int, steps: int) -> Iterator[dict[str, Tensor]]:
        """Yield inputs and targets of so many *steps* from *step* on.

        The first tensor of a batch has one row per sample. The rows of all batches are gathered
        at once.
        """
        part, rows = self.part, self.rows(step, steps)
        yield from gather_batches(part.features, part.targets, rows, self.batch_size)


class MappedBatches:
    """Shuffled passes over memory-mapped rows, cut into epochs of equal length.

    A pass reads blocks of rows in random order. The rows of many blocks, a window, are in memory at
    one time and are shuffled among each other; so files larger than the memory are read at the
    speed of the disk. Each pass has no row twice and begins elsewhere; it leaves out less than a
    block, and less than a batch of each window.

    Args:
        rows: Rows to draw from.
        batch_size: Rows per batch.
        steps_per_epoch: Batches per epoch.
        seed: Seed of the shuffles.
        window_blocks: Blocks in a window, unless eight batches need more.
    """

    def __init__(
        self,
        rows: MappedRows,
        *,
        batch_size: int,
        steps_per_epoch: int,
        seed: int,
        window_blocks: int = _WINDOW_BLOCKS,
    ) -> None:
        self.steps_per_epoch = steps_per_epoch
        self._rows, self._seed = rows, seed
        fitting = max(1, int(_BLOCK_BYTES / rows.row_bytes))
        self._block = min(_BLOCK_ROWS, fitting, len(rows))
        self._blocks = len(rows) // self._block
        self._batch_size = batch_size = min(batch_size, self._blocks * self._block)
        needed = -(-_WINDOW_BATCHES * batch_size // self._block)
        self._window_blocks = min(self._blocks, max(needed, window_blocks))
        self._window_batches = self._window_blocks * self._block // batch_size
        whole, rest = divmod(self._blocks, self._window_blocks)
        self._pass_batches = whole * self._window_batches + rest * self._block // batch_size
        self._buffers = ReadBuffers()
        self._loaded: tuple[tuple[int, int], _Window] | None = None

    @property
    def batches_together(self) -> int:
        """Number of batches that are gathered at once."""
        return batches_together(self._rows.row_bytes, self._batch_size)

    def epoch(self, epoch: int) -> EpochBatches:
        """Return the batches of *epoch*, the same in every call."""
        return EpochBatches(self, epoch)

    def batches(self, step: int, steps: int) -> Iterator[dict[str, Tensor]]:
        """Yield inputs and targets of so many *steps* from *step* on."""
        end, size = step + steps, self._batch_size
        while step < end:
            pass_number, batch = divmod(step, self._pass_batches)
            number, first = divmod(batch, self._window_batches)
            window = self._window(pass_number, number)
            last = min(first + end - step, len(window.order) // size)
            rows = window.order[first * size : last * size]
            yield from gather_batches(window.features, window.targets, rows, size)
            step += last - first

    def _window(self, pass_number: int, number: int) -> _Window:
        """Read and shuffle a window, unless it is the one that was read last."""
        key = (pass_number, number)
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = None  # is overwritten
            spans = self._spans(pass_number, number)
            features, targets = self._rows.read(spans, self._buffers)
            order = _permutation(len(features), self._seed, pass_number, number)
            window = _Window(features=features, targets=targets, order=order)
            self._loaded = (key, window)
        return self._loaded[1]

    def _spans(self, pass_number: int, number: int) -> list[Span]:
        """Blocks of a window; one that extends beyond the last row goes on at the first."""
        count, block = len(self._rows), self._block
        start = _number(self._seed, pass_number) % count
        order = _permutation(self._blocks, self._seed, pass_number)
        first = number * self._window_blocks
        spans = list[Span]()
        for chosen in order[first : first + self._window_blocks].tolist():
            begin = (start + chosen * block) % count
            end = begin + block
            spans.append((begin, min(end, count)))
            if end > count:
                spans.append((0, end - count))
        return spans


@dataclass(frozen=True, kw_only=True, slots=True)
class _Window:
    """Rows in memory, and their order."""

    features: Features
    targets: Mapping[str, Tensor]
    order: Tensor


def gather_batches(
    features: Features, targets: Mapping[str, Tensor], rows: Tensor, size: int
) -> Iterator[dict[str, Tensor]]:
    """Yield inputs and targets of each *size* of *rows*, which are gathered at once."""
    names = [TARGET_PREFIX + name for name in targets]
    chosen = [split_rows(target.index_select(0, rows), size) for target in targets.values()]
    inputs = features.take(rows).split_inputs(size)
    for batch, *batch_targets in zip(inputs, *chosen, strict=True):
        batch.update(zip(names, batch_targets, strict=True))
        yield batch


def batches_together(row_bytes: float, batch_size: int) -> int:
    """Number of batches whose rows of *row_bytes* are gathered at once."""
    rows = max(_GATHERED_ROWS, int(_GATHERED_BYTES / max(1.0, row_bytes)))
    return max(1, rows // batch_size)


class EpochBatches:
    """One epoch of *stream*; can be iterated repeatedly and indexed by batch."""

    def __init__(self, stream: Batches, epoch: int) -> None:
        self._stream, self._epoch = stream, epoch

    def __len__(self) -> int:
        return self._stream.steps_per_epoch

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return next(self._stream.batches(self._epoch * len(self) + number, 1))

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        together = self._stream.batches_together
        first = self._epoch * len(self)
        for number in range(0, len(self), together):
            yield from self._stream.batches(first + number, min(together, len(self) - number))


@lru_cache(maxsize=4)
def _shuffle(seed: int, pass_number: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed((seed * 1_000_003 + pass_number) % 2**63)
    return torch.randperm(count, generator=generator)


def _permutation(count: int, *parts: int) -> Tensor:
    """Random order of so many numbers, the same for equal *parts*."""
    generator = torch.Generator().manual_seed(_number(count, *parts))
    return torch.randperm(count, generator=generator)


def _number(*parts: int) -> int:
    """Hash of *parts*, below 2**63."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
