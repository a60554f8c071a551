"""The processes that train one model together: who leads, what they agree on, who takes what."""

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

_MEETING_SECONDS = 0.1  # a command waits this long for the ranks to meet, or one step
_PATIENCE = timedelta(days=366)  # for a leader who collects or evaluates; a dead one is noticed


class Share(NamedTuple):
    """What one rank computes in one round.

    Attributes:
        batch: To compute.
        replay: Whether another rank takes it too, and this one only keeps step.
        dealt: Batches that the ranks take together.
    """

    batch: Batch
    replay: bool
    dealt: int


class Ranks:
    """The ranks of the initialised process group, or one process alone, for which all is free.

    What is agreed travels through a gloo group of its own, so no rank waits for a device.

    Attributes:
        rank: Of this process.
        count: Of processes.
        control: The group that carries agreements; None alone.
    """

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.count = dist.get_world_size() if together else 1
        self.control = control_group(dist.group.WORLD) if together else None
        self._steps, self._meeting = 0, 1
        self._met_at_step, self._met_at = 0, time.monotonic()

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which alone reports, decides and evaluates."""
        return self.rank == 0

    def same(self, value: T) -> T:
        """The leader's *value*, on every rank."""
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

    def agree(self, orders: Callable[[], list[T]]) -> list[T]:
        """The leader's orders, on every rank after the same step; call it after every step.

        The ranks meet every tenth of a second or every step, whichever is longer: in between
        there is nothing to obey, and nothing is sent.

        Args:
            orders: Called by the leader alone, when the ranks meet.
        """
        if self.count == 1:
            return orders()
        self._steps += 1
        if self._steps < self._meeting:
            return []
        agreed, self._meeting = self.same(
            (orders(), self._next_meeting()) if self.leads else ([], 0)
        )
        return agreed

    def _next_meeting(self) -> int:
        now, steps = time.monotonic(), self._steps - self._met_at_step
        pace = _MEETING_SECONDS * steps / max(now - self._met_at, 1e-6)
        self._met_at_step, self._met_at = self._steps, now
        return self._steps + max(1, min(int(pace), 2 * steps))

    def demand_same_length(self, batches: int) -> None:
        """Refuse an epoch that has another number of *batches* on another rank.

        Raises:
            ValueError: On every rank.
        """
        lengths = self.gather(batches)
        if len(set(lengths)) > 1:
            raise ValueError(
                f"the ranks have {lengths} batches: every rank must be given the same job, of "
                "which each takes its share"
            )

    def deal(self, batches: Iterable[Batch], start: int) -> Iterator[Share]:
        """Deal the batches of an epoch, rank by rank; every rank gets as many as every other.

        In a last round with fewer batches than ranks, the ranks that go away empty replay the
        first of them, so that nobody waits for them in a collective; see `FP16Trainer.step`.
        Batches with ``__len__`` and ``__getitem__`` are fetched by the rank that takes them;
        of any other iterable each rank goes through all.

        Args:
            batches: The same on every rank.
            start: How many to leave out; they are passed over before this returns.
        """
        if self.count > 1 and isinstance(batches, Sized) and hasattr(batches, "__getitem__"):
            return self._deal_by_number(batches.__getitem__, start, len(batches))
        stream = iter(batches)
        for _ in range(start):
            next(stream, None)
        if self.count == 1:
            return (Share(batch, replay=False, dealt=1) for batch in stream)
        return self._deal_in_rounds(stream)

    def _deal_by_number(
        self, fetch: Callable[[int], Batch], start: int, end: int
    ) -> Iterator[Share]:
        for first in range(start, end, self.count):
            replay = first + self.rank >= end
            batch = fetch(first if replay else first + self.rank)
            yield Share(batch, replay, min(self.count, end - first))

    def _deal_in_rounds(self, stream: Iterator[Batch]) -> Iterator[Share]:
        while dealt := list(islice(stream, self.count)):
            replay = self.rank >= len(dealt)
            yield Share(dealt[0 if replay else self.rank], replay, len(dealt))


@cache
def control_group(world: dist.ProcessGroup) -> dist.ProcessGroup:
    """The gloo group over the ranks of *world*, made at the first call, which all must make."""
    ranks = dist.get_process_group_ranks(world)
    group: dist.ProcessGroup = dist.new_group(ranks, backend="gloo", timeout=_PATIENCE)
    return group
