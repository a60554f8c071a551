import gc
from collections.abc import Iterator

import pytest
import torch

from benchmarks.measuring.timing import interleave, seconds_of


@pytest.fixture(autouse=True)
def _frozen_again() -> Iterator[None]:
    """Afterwards, collections are as short again as the test found them."""
    yield
    gc.freeze()


def test_every_block_runs_once_a_round_in_changing_order():
    ran: list[str] = []

    def block(name: str):
        def run() -> float:
            ran.append(name)
            return float(len(ran))

        return run

    costs = interleave({name: block(name) for name in "abcde"}, rounds=6, seed=0)
    orders = [ran[i : i + 5] for i in range(0, 30, 5)]
    assert [sorted(order) for order in orders] == [list("abcde")] * 6
    assert len({tuple(order) for order in orders}) > 3
    assert costs[1][orders[1][0]] == 6.0
    assert len(costs) == 6


def test_garbage_collection_resumes_even_if_the_work_fails():
    def fail() -> None:
        assert not gc.isenabled()
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        seconds_of(fail, torch.device("cpu"))
    assert gc.isenabled()


def test_nothing_stays_frozen():
    gc.unfreeze()
    interleave({"a": lambda: 0.0}, rounds=1, seed=0)
    assert gc.get_freeze_count() == 0


def test_what_was_frozen_before_stays_so():
    made: list[object] = [[]]
    gc.freeze()
    interleave({"a": lambda: 0.0}, rounds=1, seed=0)
    assert not any(each is made for each in gc.get_objects())
