import math

import pytest

from benchmarks.measuring.spread import Interval
from benchmarks.precision_lab.hypotheses.command import CLAIMS
from benchmarks.precision_lab.hypotheses.verdicts import (
    Claim,
    Verdict,
    intervals,
    over_seeds,
    overall,
)


def _claim(figure: str = "x", *, necessary: bool = True) -> Claim:
    return Claim(
        hypothesis="H1",
        text="x is large",
        figure=figure,
        confirmed_above=0.5,
        refuted_below=0.1,
        would_decide="more seeds",
        necessary=necessary,
    )


def _interval(low: float, high: float) -> Interval:
    return Interval(figure=(low + high) / 2, low=low, high=high)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.6, 0.7, Verdict.CONFIRMED),
        (-0.3, 0.05, Verdict.REFUTED),
        (0.05, 0.7, Verdict.UNDECIDED),
        (0.2, 0.3, Verdict.UNDECIDED),
        (-math.inf, math.inf, Verdict.UNDECIDED),
        (math.nan, math.nan, Verdict.UNDECIDED),
    ],
)
def test_the_whole_interval_must_be_beyond_the_rule(
    low: float, high: float, verdict: Verdict
) -> None:
    assert _claim().verdict(_interval(low, high)) is verdict


def test_a_hypothesis_falls_with_one_necessary_claim_and_stands_with_all() -> None:
    figures = {"high": _interval(0.6, 0.7), "low": _interval(0.0, 0.05), "wide": _interval(0, 1)}
    high, low, wide = map(_claim, figures)
    assert overall([high, high], figures) is Verdict.CONFIRMED
    assert overall([high, wide], figures) is Verdict.UNDECIDED
    assert overall([high, low, wide], figures) is Verdict.REFUTED
    assert overall([high, _claim("low", necessary=False)], figures) is Verdict.CONFIRMED
    assert overall([high, _claim("not measured")], figures) is Verdict.UNDECIDED


def test_the_interval_is_that_of_student() -> None:
    found = over_seeds([1.0, 2.0, 3.0, 4.0, 5.0])
    # mean 3, standard deviation 1.5811, t = 2.7764: 3 ± 2.7764 * 1.5811 / sqrt(5)
    assert found.figure == 3.0
    assert found.high - 3 == pytest.approx(1.9632, abs=1e-4)
    assert math.isinf(over_seeds([1.0]).high)
    assert math.isinf(over_seeds([1.0, math.inf, -math.inf]).high)
    assert intervals([{"a": 1.0, "b": 2.0}, {"a": 3.0}]).keys() == {"a"}


def test_each_hypothesis_has_a_claim_that_could_refute_it() -> None:
    for hypothesis in ("H1", "H2", "H3", "H4"):
        assert any(each.necessary and each.hypothesis == hypothesis for each in CLAIMS)
    assert all(each.refuted_below <= each.confirmed_above for each in CLAIMS)
