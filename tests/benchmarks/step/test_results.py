import dataclasses

import pytest

from benchmarks.measuring.spread import Spread
from benchmarks.step.results import Case, Comparison, Figure, Measured, NotRun

OURS = Case(size="tiny", loop="ours", precision="fp16")
THEIRS = Case(size="tiny", loop="textbook", precision="fp16")
FULL = Case(size="tiny", loop="ours", precision="fp32")


def measured(case: Case, effective: str, *seconds: float, peak: int | None = None) -> Measured:
    return Measured(
        case=case, effective=effective, seconds=seconds, host_reads=0.0, peak_bytes=peak
    )


def find(*results: Measured | NotRun, compares: str, **options: object) -> Figure:
    above, below = results
    comparison = Comparison(
        numerator=above.case, denominator=below.case, compares=compares, **options
    )
    return comparison.measure({result.case: result for result in results})


def test_ratio_is_taken_in_each_round_before_the_median():
    """A disturbed round counts once, on both sides: the ratio of medians would be 1.0."""
    figure = find(
        measured(OURS, "fp16", 1.0, 10.0, 2.0),
        measured(THEIRS, "fp16", 2.0, 20.0, 2.0),
        compares="loops",
        at_most=0.6,
    )
    assert figure.spread == Spread(low=0.5, median=0.5, high=0.75)
    assert figure.verdict == "pass"


@pytest.mark.parametrize(
    ("median", "limits", "verdict"),
    [
        (0.6, {"at_most": 0.6}, "pass"),
        (0.61, {"at_most": 0.6}, "miss"),
        (0.61, {}, "no limit"),
        (3.0, {"exactly": 3}, "pass"),
        (2.0, {"exactly": 3}, "miss"),
        (0.0, {"exactly": 0}, "pass"),
    ],
)
def test_verdict(median, limits, verdict):
    assert Figure(what="", spread=Spread.of([median]), **limits).verdict == verdict


def test_speed_up_between_rows_of_one_effective_precision_is_refused():
    figure = find(
        measured(OURS, "fp32", 1.0),
        measured(FULL, "fp32", 2.0),
        compares="precisions",
        at_most=0.75,
    )
    assert figure.spread is None
    assert figure.verdict.startswith("refused: both")


def test_loops_that_computed_differently_are_not_compared():
    figure = find(
        measured(OURS, "fp16", 1.0), measured(THEIRS, "fp32", 2.0), compares="loops", at_most=0.8
    )
    assert figure.verdict.startswith("refused: ours computed fp16, textbook fp32")


@pytest.mark.parametrize("missing", [0, 1])
def test_cases_not_run_are_reported(missing):
    results = [measured(OURS, "fp16", 1.0), measured(THEIRS, "fp16", 2.0)]
    results[missing] = NotRun(case=results[missing].case, reason="for a reason")
    figure = find(*results, compares="loops", at_most=0.8)
    assert figure.verdict.startswith("not run: ")
    assert figure.verdict.endswith("for a reason")


def test_memory_is_compared_where_it_was_counted():
    half = measured(OURS, "fp16", 1.0, peak=60)
    full = measured(FULL, "fp32", 1.0, peak=100)
    options = {"compares": "precisions", "quantity": "memory"}
    assert find(half, full, **options).spread.median == 0.6
    uncounted = dataclasses.replace(half, peak_bytes=None)
    assert "CUDA" in find(uncounted, full, **options).verdict


def test_rounds_must_match():
    with pytest.raises(ValueError, match="longer"):
        find(measured(OURS, "x", 1.0), measured(THEIRS, "x", 1.0, 2.0), compares="loops")
