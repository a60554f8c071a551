"""The task of a cell: write the digits of the prompt in reverse order. A program checks it."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

CHARACTERS = "0123456789>"
LONGEST_ANSWER = 6
_SHORTEST_ANSWER = 3
_DIGITS = CHARACTERS[:10]


class Problem(NamedTuple):
    """A sum to be computed.

    Attributes:
        prompt: What the policy reads: the digits and ``>``.
        answer: The only right completion.
    """

    prompt: str
    answer: str


def problems(random: Random) -> Iterator[Problem]:
    """Draw problems without end."""
    while True:
        length = random.randint(_SHORTEST_ANSWER, LONGEST_ANSWER)
        digits = "".join(random.choices(_DIGITS, k=length))
        yield Problem(f"{digits}>", digits[::-1])


def score(problem: Problem, completion: str) -> float:
    """Share of right characters, from 0 to 1; 1 for the right answer alone.

    Characters count at their position. Those too many or too few are wrong ones.
    """
    right = sum(
        expected == given for expected, given in zip(problem.answer, completion, strict=False)
    )
    return right / max(len(problem.answer), len(completion))


def with_errors(problem: Problem, random: Random, rate: float) -> str:
    """The answer of a demonstrator who replaces each digit by any other with probability *rate*."""
    return "".join(
        random.choice(_DIGITS.replace(digit, "")) if random.random() < rate else digit
        for digit in problem.answer
    )
