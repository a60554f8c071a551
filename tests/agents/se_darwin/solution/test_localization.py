"""Functions that failing tests visit, and their repair if the caller names none."""

from __future__ import annotations

import asyncio

import pytest

from agents.se_darwin.sandbox import PytestSuiteError
from agents.se_darwin.solution.request import EvolutionRequest
from agents.se_darwin_agent import SEDarwinAgent

pytestmark = pytest.mark.process

CODE = """
class Basket:
    def __init__(self, prices):
        self.prices = prices

    @property
    def total(self):
        return sum(self.prices)

    @total.setter
    def total(self, value):
        self.prices = [value]

    def reduced(self, rate):
        return self.total * (1 + rate)

def unused():
    return 1

def bill(prices, rate):
    return f"{Basket(prices).reduced(rate):.2f}"
"""
TESTS = """
import pytest
from program import Basket, bill
def test_total():
    assert Basket([1, 2]).total == 3
    assert bill([1, 2], 0) == "3.00"
def test_reduced():
    assert Basket([8]).reduced(0.5) == 4
    assert Basket([8]).reduced(0.25) == 6
def test_bill():
    assert bill([10], 0.5) == "5.00"
"""


def test_functions_are_ordered_by_what_failing_and_passing_checks_visit() -> None:
    request = EvolutionRequest(code=CODE, function="", test_code=TESTS)

    found = request.suspicious_functions(5.0)

    assert [function.name for function in found] == [
        "Basket.reduced",
        "Basket.__init__",
        "Basket.total",
        "bill",
    ]
    assert str(found[0]) == (
        "Basket.reduced (line 14): suspicion 0.87, visited by 3 of 3 failing and 1 of 2 passing "
        "checks"
    )


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (CODE.replace("1 + rate", "1 - rate"), "all 5 checks pass"),
        ("class Basket:\n    pass\nbill = None\ndef f(): 0", "no failing check visits a function"),
    ],
)
def test_without_a_suspicious_function_the_caller_is_told_why(code: str, message: str) -> None:
    request = EvolutionRequest(code=code, function="", test_code=TESTS)

    with pytest.raises(PytestSuiteError, match=message):
        request.suspicious_functions(5.0)


def test_the_functions_are_tried_until_one_is_repaired() -> None:
    code = CODE.replace("1 + rate", "1 - rate").replace(":.2f", ":.3f").replace("1\n", "2\n")
    tests = TESTS.replace("    assert Basket([1, 2]).total == 3\n", "")
    context = {"code": code, "function": "", "test_code": tests, "ranker": "suspicion"}

    result = asyncio.run(SEDarwinAgent().evolve_solution("", context | {"max_seconds": 40.0}))

    assert result["success"]
    assert "-    return f'{Basket" not in result["best_trajectory"]["diff"]
    assert "{Basket(prices).reduced(rate):.2f}" in result["best_trajectory"]["code_after"]
    assert result["functions"][-1].startswith("bill (line 20): suspicion 1.00, visited by 2 of 2")
    assert result["functions"][-1].endswith("passing checks: repaired")
