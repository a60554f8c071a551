"""Measurements, reasons for missing ones, and comparisons between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from benchmarks.measuring.observe import refuse_precisions
from benchmarks.measuring.spread import Spread
from benchmarks.step.loops import Mode, Requested


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What is measured: a model in a loop.

    Attributes:
        size: Name in `models.SIZES`.
        loop: Name in `cases.LOOPS`.
        precision: Requested precision.
        mode: ``eager`` or ``graph``.
    """

    size: str
    loop: str
    precision: Requested
    mode: Mode = "eager"

    def __str__(self) -> str:
        return f"{self.loop} {self.precision}" + (" graph" if self.mode == "graph" else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Measurement of a case.

    Attributes:
        case: The case.
        effective: Precision in which products were computed; see `observe.effective_precision`.
        seconds: Seconds per step, one for each round; all cases of a size share the rounds.
        host_reads: Host reads per step.
        peak_bytes: Peak device memory of the model, its optimizer and a step; None on a CPU.
        note: Difference from the other loops.
    """

    case: Case
    effective: str
    seconds: tuple[float, ...]
    host_reads: float
    peak_bytes: int | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class NotRun:
    """A case without a measurement.

    Attributes:
        case: The case.
        reason: Reason that there is no measurement.
    """

    case: Case
    reason: str


Result: TypeAlias = Measured | NotRun
Results: TypeAlias = Mapping[Case, Result]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A figure and its limit.

    Attributes:
        what: Description.
        spread: The value; None if it could not be measured.
        at_most: Upper limit; None without a limit.
        exactly: Required value of a figure that shows that a detector works.
        reason: Reason that there is no value.
    """

    what: str
    spread: Spread | None = None
    at_most: float | None = None
    exactly: float | None = None
    reason: str = ""

    @property
    def verdict(self) -> str:
        """``pass``, ``miss``, ``no limit``, or the reason that there is no value."""
        if self.spread is None:
            return self.reason
        if self.exactly is not None:
            return "pass" if self.spread.median == self.exactly else "miss"
        if self.at_most is None:
            return "no limit"
        return "pass" if self.spread.median <= self.at_most else "miss"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A ratio of two cases.

    Attributes:
        numerator: Case above the line.
        denominator: Case below the line.
        compares: ``loops`` of one precision, or ``precisions``.
        at_most: Upper limit of the ratio; see `Figure`.
        quantity: Quantity that is divided.
    """

    numerator: Case
    denominator: Case
    compares: Literal["loops", "precisions"]
    at_most: float | None = None
    quantity: Literal["time", "memory"] = "time"

    def measure(self, results: Results) -> Figure:
        """Return the ratio over the rounds, or the reason that there is none."""
        quantity = ", peak memory" if self.quantity == "memory" else ""
        what = f"{self.numerator.size}: {self.numerator} ÷ {self.denominator}{quantity}"
        above, below = results[self.numerator], results[self.denominator]
        reason = _not_run(above) or _not_run(below)
        if isinstance(above, NotRun) or isinstance(below, NotRun):
            return Figure(what=what, at_most=self.at_most, reason=reason)
        if refusal := self._refuse(above, below):
            return Figure(what=what, at_most=self.at_most, reason=f"refused: {refusal}")
        if self.quantity == "time":
            pairs = list(zip(above.seconds, below.seconds, strict=True))
        elif above.peak_bytes is None or below.peak_bytes is None:
            reason = "not run: peak memory is counted on CUDA only"
            return Figure(what=what, at_most=self.at_most, reason=reason)
        else:
            pairs = [(above.peak_bytes, below.peak_bytes)]
        ratios = [numerator / denominator for numerator, denominator in pairs]
        return Figure(what=what, spread=Spread.of(ratios), at_most=self.at_most)

    def _refuse(self, above: Measured, below: Measured) -> str:
        if self.compares == "precisions":
            return refuse_precisions(above.effective, below.effective)
        if above.effective == below.effective:
            return ""
        return (
            f"{above.case.loop} computed {above.effective}, {below.case.loop} {below.effective}: "
            "this does not compare loops"
        )


def _not_run(result: Result) -> str:
    return f"not run: {result.case}: {result.reason}" if isinstance(result, NotRun) else ""
