"""The processes that train one model together: agreement, and shares of the batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sized
from datetime import timedelta
from functools import cache
from itertools import islice
from typing import NamedTuple, TypeVar

import torch.distributed as dist

from infrastructure.agent_contract.training_job import Batch

T = TypeVar("T")

_SYNC_SECONDS = 0.1  # a command waits at most this long for the ranks to meet, or one step
_TIMEOUT = timedelta(days=366)  # rank 0 may collect or evaluate for long; a dead rank is noticed


class RankBatch(NamedTuple):
    """A batch that one rank computes in one round.

    Attributes:
        batch: The batch.
        replay: Whether it belongs to another rank, and this one only takes part in the
            collectives.
        taken: Batches that all ranks take in this round.
    """

    batch: Batch
    replay: bool
    taken: int


class Ranks:
    """The ranks of the initialised process group; without one, a single process.

    Agreements travel through a gloo group of their own, so that no rank waits for a device. With
    one process nothing is sent.

    Attributes:
        rank: This process's number.
        count: Number of processes.
        control: Group that carries agreements; None with one process.
    """

    def __init__(self) -> None:
        distributed = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if distributed else 0
        self.count = dist.get_world_size() if distributed else 1
        self.control = control_group(dist.group.WORLD) if distributed else None
        self._steps, self._next_sync = 0, 1
        self._synced_step, self._synced_at = 0, time.monotonic()

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is rank 0, which alone reports, decides and evaluates."""
        return self.rank == 0

    def broadcast(self, value: T) -> T:
        """Rank 0's *value*, on every rank."""
        if self.count == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def gather(self, value: T) -> list[T]:
        """Every rank's *value*, in order of rank, on every rank."""
        if self.count == 1:
            return [value]
        values = [value] * self.count
        dist.all_gather_object(values, value, group=self.control)
        return values

    def agree(self, decide: Callable[[], list[T]]) -> list[T]:
        """Rank 0's decisions, on every rank after the same step; call it after every step.

        The ranks synchronise every tenth of a second or every step, whichever takes longer. In
        between this returns an empty list and sends nothing.

        Args:
            decide: Called on rank 0 alone, when the ranks synchronise.
        """
        if self.count == 1:
            return decide()
        self._steps += 1
        if self._steps < self._next_sync:
            return []
        agreed, self._next_sync = self.broadcast(
            (decide(), self._plan_sync()) if self.is_rank_zero else ([], 0)
        )
        return agreed

    def _plan_sync(self) -> int:
        """Number of the step after which the ranks synchronise next."""
        now, steps = time.monotonic(), self._steps - self._synced_step
        steps_per_sync = _SYNC_SECONDS * steps / max(now - self._synced_at, 1e-6)
        self._synced_step, self._synced_at = self._steps, now
        return self._steps + max(1, min(int(steps_per_sync), 2 * steps))

    def require_equal_length(self, batches: int) -> None:
        """Check that every rank's epoch has the same number of *batches*.

        Raises:
            ValueError: It differs; on every rank.
        """
        lengths = self.gather(batches)
        if len(set(lengths)) > 1:
            raise ValueError(
                f"the ranks have {lengths} batches: give every rank the same job; the ranks share "
                "its batches among themselves"
            )

    def shard_batches(self, batches: Iterable[Batch], start: int) -> Iterator[RankBatch]:
        """This rank's share of an epoch's batches; every rank gets the same number.

        In a last round with fewer batches than ranks, the ranks without one replay the first of
        them, so that the others do not wait for them in a collective; see `FP16Trainer.step`.
        From batches with ``__len__`` and ``__getitem__`` a rank fetches only its own; any other
        iterable is iterated in full on each rank.

        Args:
            batches: The same on every rank.
            start: Number of batches to skip; they are skipped before this returns.
        """
        if self.count > 1 and isinstance(batches, Sized) and hasattr(batches, "__getitem__"):
            return self._shard_sequence(batches.__getitem__, start, len(batches))
        stream = iter(batches)
        for _ in range(start):
            next(stream, None)
        if self.count == 1:
            return (RankBatch(batch, replay=False, taken=1) for batch in stream)
        return self._shard_stream(stream)

    def _shard_sequence(
        self, fetch: Callable[[int], Batch], start: int, end: int
    ) -> Iterator[RankBatch]:
        for first in range(start, end, self.count):
            replay = first + self.rank >= end
            batch = fetch(first if replay else first + self.rank)
            yield RankBatch(batch, replay, min(self.count, end - first))

    def _shard_stream(self, stream: Iterator[Batch]) -> Iterator[RankBatch]:
        while taken := list(islice(stream, self.count)):
            replay = self.rank >= len(taken)
            yield RankBatch(taken[0 if replay else self.rank], replay, len(taken))


@cache
def control_group(world: dist.ProcessGroup) -> dist.ProcessGroup:
    """The gloo group over the ranks of *world*; every rank must make the first call."""
    ranks = dist.get_process_group_ranks(world)
    group: dist.ProcessGroup = dist.new_group(ranks, backend="gloo", timeout=_TIMEOUT)
    return group
