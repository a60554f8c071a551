"""Delta debugging: the smallest set of changes that makes a test pass, in few tests.

Zeller & Hildebrandt 2002, "Simplifying and Isolating Failure-Inducing Input", algorithm ddmin. It
makes no assumption about how changes act together: two changes that only together have an effect
are found as a set of two, which flipping one change at a time cannot do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def minimal_subset(items: Sequence[T], passes: Callable[[Sequence[T]], bool]) -> list[T]:
    """A subset of *items* that passes, but fails if any single item is left out.

    Args:
        items: Items, neighbours being likely to belong together. All together must pass.
        passes: Test of a subset, which keeps the order of *items*. Any function: it need not be
            monotone. No subset is tested twice.

    Returns:
        The subset, empty if the empty one passes. It is minimal in the sense that leaving out one
        item makes the test fail; a smaller one of other items may exist.
    """
    tested: dict[tuple[int, ...], bool] = {}

    def test(indices: Sequence[int]) -> bool:
        key = tuple(indices)
        if key not in tested:
            tested[key] = passes([items[index] for index in key])
        return tested[key]

    if test([]):
        return []
    current = list(range(len(items)))
    parts = 2
    while len(current) > 1:
        chunks = _split(current, parts)
        smaller = next((chunk for chunk in chunks if test(chunk)), None)
        if smaller is not None:
            current, parts = smaller, 2
            continue
        complements = ([i for i in current if i not in chunk] for chunk in chunks)
        smaller = next((rest for rest in complements if len(chunks) > 2 and test(rest)), None)
        if smaller is not None:
            current, parts = smaller, max(parts - 1, 2)
        elif parts >= len(current):
            break
        else:
            parts = min(2 * parts, len(current))
    return [items[index] for index in current]


def _split(indices: list[int], parts: int) -> list[list[int]]:
    bounds = [round(part * len(indices) / parts) for part in range(parts + 1)]
    return [indices[a:b] for a, b in pairwise(bounds) if b > a]
