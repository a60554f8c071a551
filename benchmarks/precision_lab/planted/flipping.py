"""What people do by hand: put one place at a time in FP32, and look whether it helps."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.precision_lab.planted.faults import Planted
from infrastructure.precision_lab import Place
from infrastructure.precision_lab.bisect import TOLERANCE, NoiseFloor
from infrastructure.precision_lab.bisect.bisect import Oracle


@dataclass(frozen=True, kw_only=True, slots=True)
class Flipped:
    """The best of all places, tried one by one.

    Attributes:
        place: The place that brings the outcome nearest to FP32; None if none brings it nearer.
        cures: Whether it brings the outcome within the tolerance.
        runs: Number of repetitions.
    """

    place: Place | None
    cures: bool
    runs: int


def flip_one_at_a_time(planted: Planted) -> Flipped:
    """Put each place alone in FP32; judge by the same noise floor and tolerance as the search."""
    floor = NoiseFloor(planted.experiment, planted.precisions)
    oracle = Oracle(planted.experiment, planted.precisions, floor)
    half = oracle.deviation(()).ratio
    place, cures = None, half <= TOLERANCE
    if not cures:
        ratios = {each: oracle.deviation([each]).ratio for each in oracle.places}
        best = min(ratios, key=lambda each: ratios[each])
        place = best if ratios[best] < half else None
        cures = ratios[best] <= TOLERANCE
    return Flipped(place=place, cures=cures, runs=oracle.runs + 5)
