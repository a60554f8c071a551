"""Rankers: what estimates, for each candidate, the chance that it is the repair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agents.se_darwin.features import NUMBERS, Fields

EXPECTED_REPAIRS = 0.7
"""Repairs that the rankers without a model expect among all single edits of a program."""
MIN_SUSPICION = 0.05

_SUSPICIOUSNESS = NUMBERS.index("suspiciousness")


class Ranker(Protocol):
    """Estimates chances; a world model is one."""

    def success_chances(self, observation: Fields, actions: Sequence[Fields]) -> list[float]:
        """Return the chance of each of *actions* to make a program that passes every test."""


class SuspicionRanker:
    """Without a model: candidates on suspicious lines (Ochiai) are more likely the repair."""

    def success_chances(self, observation: Fields, actions: Sequence[Fields]) -> list[float]:
        """See `Ranker`; in proportion to the squared suspiciousness of the edited line."""
        del observation
        return _normalise([_suspiciousness(action) ** 2 + MIN_SUSPICION for action in actions])


class RandomRanker:
    """Without any information: all candidates are equally likely."""

    def success_chances(self, observation: Fields, actions: Sequence[Fields]) -> list[float]:
        """See `Ranker`."""
        del observation
        return _normalise([1.0] * len(actions))


def _normalise(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [EXPECTED_REPAIRS * weight / total for weight in weights]


def _suspiciousness(action: Fields) -> float:
    numbers = action["numbers"]
    if not isinstance(numbers, Sequence):
        raise TypeError(f"action field 'numbers' must be a sequence, got {numbers!r}")
    return float(numbers[_SUSPICIOUSNESS])
