"""Rankers: what estimates, for each step from a program, the chance that it is the repair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agents.se_darwin.features import NUMBERS, Fields

MIN_SUSPICION = 0.05

_SUSPICIOUSNESS = NUMBERS.index("suspiciousness")


class Ranker(Protocol):
    """Estimates chances; a world model is one."""

    def success_chances(self, observation: Fields, actions: Sequence[Fields]) -> list[float]:
        """Return the chance of each of *actions* to make a program that passes every test.

        The search divides them by their sum: only their ratios count.
        """


class SuspicionRanker:
    """Without a model: steps on lines that failing tests run are more likely the repair."""

    def success_chances(self, observation: Fields, actions: Sequence[Fields]) -> list[float]:
        """See `Ranker`; the square of the line's Ochiai suspiciousness, and a little for any."""
        del observation
        return [_suspiciousness(action) ** 2 + MIN_SUSPICION for action in actions]


class CombinedRanker:
    """A world model, and the suspicion of the lines.

    Of two steps that the model thinks equal, the one on the more suspicious line is likelier: the
    model learned on other programs and tests how much suspicion counts, and where they differ from
    the given ones it trusts it too little.

    Args:
        model: The world model.
    """

    def __init__(self, model: Ranker) -> None:
        self._model, self._suspicion = model, SuspicionRanker()

    def success_chances(self, observation: Fields, actions: Sequence[Fields]) -> list[float]:
        """See `Ranker`; the product of both."""
        chances = self._model.success_chances(observation, actions)
        suspicions = self._suspicion.success_chances(observation, actions)
        return [chance * suspicion for chance, suspicion in zip(chances, suspicions, strict=True)]


class RandomRanker:
    """Without any information: all steps are equally likely."""

    def success_chances(self, observation: Fields, actions: Sequence[Fields]) -> list[float]:
        """See `Ranker`."""
        del observation
        return [1.0] * len(actions)


def _suspiciousness(action: Fields) -> float:
    numbers = action["numbers"]
    if not isinstance(numbers, Sequence):
        raise TypeError(f"action field 'numbers' must be a sequence, got {numbers!r}")
    return float(numbers[_SUSPICIOUSNESS])
