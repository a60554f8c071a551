"""Delta debugging finds minimal sets under any interaction of the items."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from infrastructure.precision_lab.bisect.search import minimal_subset

ITEMS = range(24)
SETS = st.sets(st.sampled_from(ITEMS), min_size=1, max_size=4)


@given(st.lists(SETS, min_size=1, max_size=4))
def test_of_alternatives_with_interactions_one_is_found(alternatives: list[set[int]]) -> None:
    """The test passes if all items of one of the alternatives are there."""

    def passes(subset: Sequence[int]) -> bool:
        return any(each <= set(subset) for each in alternatives)

    found = minimal_subset(ITEMS, passes)
    assert set(found) in alternatives


@given(st.frozensets(st.frozensets(st.sampled_from(range(6)))))
def test_any_test_gives_a_set_that_passes_and_cannot_lose_an_item(
    passing: frozenset[frozenset[int]],
) -> None:
    every = range(6)
    passing |= {frozenset(every)}
    tested: list[tuple[int, ...]] = []

    def passes(subset: Sequence[int]) -> bool:
        tested.append(tuple(subset))
        return frozenset(subset) in passing

    found = minimal_subset(every, passes)
    assert passes(found)
    assert found == sorted(found)
    assert len(found) <= 1 or not any(passes([i for i in found if i != each]) for each in found)
    calls = tested[: tested.index(tuple(found)) + 1]
    assert len(calls) == len(set(calls)), "a subset was tested twice"


def test_one_item_of_many_takes_few_tests() -> None:
    tests = 0

    def passes(subset: Sequence[int]) -> bool:
        nonlocal tests
        tests += 1
        return 700 in subset

    assert minimal_subset(range(1000), passes) == [700]
    assert tests <= 22


def test_without_a_fault_nothing_is_found() -> None:
    assert minimal_subset(range(5), lambda _: True) == []
