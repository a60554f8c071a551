"""Small random values from which the generators compose their inputs."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeAlias

Arguments: TypeAlias = tuple[object, ...]
Generator: TypeAlias = Callable[[Random], Arguments]

LETTERS = "abcxyzABZ"
WORDS = ("spam", "Ham", "eggs", "a", "foo bar", "x1", "", "naïve", "__init__", "Z", "100%", "tab\t")


def text(rng: Random, alphabet: str = LETTERS + " .-", low: int = 0, high: int = 12) -> str:
    """A string of *low* to *high* characters."""
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(low, high)))


def octets(rng: Random, low: int = 0, high: int = 10) -> bytes:
    """Bytes, half of them printable."""
    return bytes(
        rng.choice((rng.randint(32, 126), rng.randint(0, 255)))
        for _ in range(rng.randint(low, high))
    )


def integers(
    rng: Random, low: int = -9, high: int = 20, shortest: int = 0, longest: int = 9
) -> list[int]:
    """A list of integers, with repeats."""
    return [rng.randint(low, high) for _ in range(rng.randint(shortest, longest))]


def ascending(rng: Random, shortest: int = 0, longest: int = 9) -> list[int]:
    """Sorted integers, with repeats."""
    return sorted(integers(rng, 0, 12, shortest, longest))


def heap(rng: Random, shortest: int = 0) -> list[int]:
    """A list that is a heap, since it is sorted."""
    return ascending(rng, shortest, 9)


def words(rng: Random, shortest: int = 0, longest: int = 5) -> list[str]:
    """A list of words, some odd."""
    return [rng.choice(WORDS) for _ in range(rng.randint(shortest, longest))]


def fraction(rng: Random) -> float:
    """A number in [0, 1], the ends and the middle more often than chance."""
    return rng.choice((0.0, 1.0, 0.5, round(rng.random(), 3), round(rng.random(), 3)))


def several_of(alphabet: str, low: int = 0, high: int = 14) -> Generator:
    """A generator of one string over *alphabet*."""
    return lambda rng: (text(rng, alphabet, low, high),)
