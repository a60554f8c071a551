"""Functions that failing tests visit, and their repair if the caller names none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from agents.se_darwin.sandbox import PytestSuiteError
from agents.se_darwin.solution.request import EvolutionRequest
from agents.se_darwin_agent import SEDarwinAgent
from infrastructure.agent_contract.proposer import ProposalRequest, ProposedFunction

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

    found = request.localize(5.0).functions

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
        request.localize(5.0).require_failures()


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


TWO = """
def low(x, a):
    return x <= a

def high(x, b):
    return x <= b
"""
TESTS_OF_TWO = """
from program import low, high
def test_low():
    assert low(1, 2) is True
    assert low(2, 2) is False
def test_high():
    assert high(1, 2) is False
    assert high(3, 2) is True
"""


def test_all_tests_of_the_file_decide() -> None:
    context: dict[str, object] = {"code": TWO, "function": "", "ranker": "suspicion"}
    context |= {"max_evaluations": 150, "max_seconds": 40.0}

    both = asyncio.run(SEDarwinAgent().evolve_solution("", context | {"test_code": TESTS_OF_TWO}))
    tests = TESTS_OF_TWO.replace("low(1, 2) is True", "low(1, 2) == 'never'")
    one = asyncio.run(SEDarwinAgent().evolve_solution("", context | {"test_code": tests}))

    assert both["success"]
    assert both["best_trajectory"]["test_results"] == [True] * 4
    assert both["best_trajectory"]["diff"].count("\n-") == 2
    assert [line.rpartition(": ")[2] for line in both["functions"]] == ["repaired"] * 2
    assert not one["success"]
    assert "x <= b" not in one["best_trajectory"]["code_after"]
    assert one["failing"][0] == "test_low, line 4"
    assert one["certainty"] is None


class Wordy:
    """A proposer that writes as many wrong functions as it may."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def propose(self, request: ProposalRequest) -> Iterator[ProposedFunction]:
        self.asked.append((request.function, request.candidates))
        for number in range(request.candidates):
            code = f"def {request.function}(x, a):\n    return [{number}]"
            yield ProposedFunction(code=code)

    def preview(self, request: ProposalRequest) -> str:
        return ""

    def summary(self) -> str:
        return ""


def test_the_functions_share_what_is_proposed() -> None:
    tests = TESTS_OF_TWO.replace("low(1, 2) is True", "low(1, 2) == 'never'")
    tests = tests.replace("high(1, 2) is False", "high(1, 2) == 'never'")
    wordy = Wordy()
    context = {"code": TWO, "function": "", "test_code": tests, "max_evaluations": 60}

    result = asyncio.run(
        SEDarwinAgent(proposers={"wordy": wordy}).evolve_solution(
            "", {**context, "max_proposals": 8, "max_seconds": 30.0, "ranker": "suspicion"}
        )
    )

    assert not result["success"]
    assert {function for function, _ in wordy.asked} == {"low", "high"}
    assert wordy.asked[0][1] == 4
    assert next(each for each in result["proposers"] if each["name"] == "wordy")["proposed"] == 8


def test_modules_that_the_tests_import_late_are_found() -> None:
    tests = """
import unittest
from program import low
class LowTest(unittest.IsolatedAsyncioTestCase):
    async def test_low(self):
        self.assertTrue(low(1, 2))
        self.assertFalse(low(2, 2))
"""
    found = EvolutionRequest(code=TWO, function="", test_code=tests).localize(5.0)

    assert found.passed == (True, False)
    assert [function.name for function in found.functions] == ["low"]
