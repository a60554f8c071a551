from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.training.distributed import Ranks


class ByNumber:
    """Batches with a length and numbers; remembers which were fetched."""

    def __init__(self, count: int) -> None:
        self.count, self.fetched = count, []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        self.fetched.append(number)
        return {"number": torch.tensor(number)}

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(self.count))


def rank(number: int, count: int) -> Ranks:
    ranks = Ranks()
    ranks.rank, ranks.count = number, count
    return ranks


@given(
    batches=st.integers(0, 20),
    count=st.integers(1, 5),
    start=st.integers(0, 20),
    by_number=st.booleans(),
)
def test_every_batch_is_taken_once_and_every_rank_gets_as_many(batches, count, start, by_number):
    start = min(start, batches)
    hands = []
    for number in range(count):
        stream = ByNumber(batches)
        source = stream if by_number else iter(stream)
        hands.append([*rank(number, count).shard_batches(source, start)])
        if by_number and count > 1:
            assert len(stream.fetched) == len(hands[-1])  # nobody loads what others take
    assert len({len(hand) for hand in hands}) == 1
    taken = [int(s.batch["number"]) for hand in hands for s in hand if not s.replay]
    assert sorted(taken) == [*range(start, batches)]
    for shares in zip(*hands, strict=True):
        assert len({share.taken for share in shares}) == 1
        assert shares[0].taken == sum(not share.replay for share in shares)
        for share in shares:
            assert not share.replay or share.batch["number"] == shares[0].batch["number"]
    assert sum(share.taken for share in hands[0]) == batches - start


def test_one_process_agrees_with_itself_at_once():
    alone = Ranks()
    assert (alone.rank, alone.count, alone.is_rank_zero, alone.control) == (0, 1, True, None)
    assert alone.broadcast("word") == "word"
    assert alone.gather("word") == ["word"]
    assert alone.agree(lambda: ["order"]) == ["order"]


def test_batches_are_skipped_before_the_first_is_requested():
    drawn = []

    def stream():
        for number in range(5):
            drawn.append(number)
            yield {"number": torch.tensor(number)}

    shares = Ranks().shard_batches(stream(), 3)
    assert drawn == [0, 1, 2]
    assert [int(share.batch["number"]) for share in shares] == [3, 4]
