"""Figures of several seeds, and what they say about a claim.

The rules are fixed before anything is measured: a claim names the figure, the value above which it
is confirmed, and the value below which it is refuted. Between both, or where the interval reaches
across one of them, it is undecided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev

from benchmarks.measuring.spread import Interval


class Verdict(StrEnum):
    """What an experiment says about a claim."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One consequence of a hypothesis that an experiment could refute.

    Attributes:
        hypothesis: H1 to H4.
        text: What is claimed, one sentence.
        figure: Name of the figure that decides.
        confirmed_above: The claim holds if the whole interval is above this.
        refuted_below: It does not if the whole interval is below this.
        would_decide: What to do if it stays undecided.
        necessary: Whether the hypothesis as document 004 states it falls with this claim.
    """

    hypothesis: str
    text: str
    figure: str
    confirmed_above: float
    refuted_below: float
    would_decide: str
    necessary: bool = True

    def verdict(self, measured: Interval) -> Verdict:
        """What *measured* says; an interval that is not finite decides nothing."""
        if not (math.isfinite(measured.low) and math.isfinite(measured.high)):
            return Verdict.UNDECIDED
        if measured.low > self.confirmed_above:
            return Verdict.CONFIRMED
        return Verdict.REFUTED if measured.high < self.refuted_below else Verdict.UNDECIDED


def overall(claims: Sequence[Claim], figures: Mapping[str, Interval]) -> Verdict:
    """Verdict on a hypothesis: refuted with any necessary claim, confirmed with all of them.

    A necessary claim whose figure was not measured leaves it undecided.
    """
    verdicts = [
        each.verdict(figures[each.figure]) if each.figure in figures else Verdict.UNDECIDED
        for each in claims
        if each.necessary
    ]
    if Verdict.REFUTED in verdicts:
        return Verdict.REFUTED
    if set(verdicts) == {Verdict.CONFIRMED}:
        return Verdict.CONFIRMED
    return Verdict.UNDECIDED


def over_seeds(values: Sequence[float]) -> Interval:
    """Mean of one figure per seed with Student's 95 % interval.

    The interval is infinite for a single seed, and where a figure is not finite.
    """
    from scipy.stats import t

    if not all(map(math.isfinite, values)):
        return Interval(figure=math.nan, low=-math.inf, high=math.inf)
    mean = fmean(values)
    if len(values) < 2:
        return Interval(figure=mean, low=-math.inf, high=math.inf)
    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return Interval(figure=mean, low=mean - half, high=mean + half)


def intervals(figures: Sequence[Mapping[str, float]]) -> dict[str, Interval]:
    """The interval of each figure that every seed has; one mapping per seed."""
    names = [name for name in figures[0] if all(name in each for each in figures)]
    return {name: over_seeds([each[name] for each in figures]) for name in names}
