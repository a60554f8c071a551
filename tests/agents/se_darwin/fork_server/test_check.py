from __future__ import annotations

from dataclasses import replace

import pytest

from agents.se_darwin.fork_server.check import PASSED
from agents.se_darwin.sandbox import Sandbox
from tests.agents.se_darwin.suites import PROGRAM, passed, prepare, run


def test_every_assert_is_a_check_and_the_test_continues(sandbox: Sandbox) -> None:
    tests = """
from mod import solve
def test_a():
    assert solve(1) == 3, "wrong"
    for x in (1, 2):
        assert solve(x) == x + 1
    if solve(0):
        assert solve(2) == 4
    else:
        assert solve(3) == 4
    n = 3
    while n > 2:
        n -= 1
        assert solve(n) != 4
def test_b():
    assert solve(1) == 2 == 3
    assert solve(1)
"""
    assert passed(sandbox, tests) == {
        "test_a, line 4": False,
        "test_a, line 6": True,
        "test_a, line 8": False,
        "test_a, line 10": True,
        "test_a, line 14": True,
        "test_a": True,
        "test_b, line 16": False,
        "test_b, line 17": True,
    }


def test_failures_that_a_test_catches_itself_are_not_checks(sandbox: Sandbox) -> None:
    tests = """
import pytest
import mod
def test_raises():
    with pytest.raises(mod.WrongError, match="below"):
        assert mod.solve(-1)
    try:
        assert mod.solve(1) == 5
    except AssertionError:
        pass
    assert mod.solve(0.5) == pytest.approx(1.5)
"""
    assert passed(sandbox, tests) == {"test_raises, line 11": True}


def test_a_test_that_stops_early_fails_what_it_did_not_reach(sandbox: Sandbox) -> None:
    tests = """
from mod import solve
def test_a():
    assert solve(1) == 2
    solve(-5)
    assert solve(2) == 3
"""
    suite = prepare(sandbox, tests)
    reached, missed = run(sandbox, suite, coverage=True).outputs
    assert reached is not None
    assert missed is not None
    assert (reached.text, missed.kind, missed.text) == ("passed", "raise", "WrongError")
    assert reached.lines & missed.lines  # both run `if x < low`
    assert reached.lines - missed.lines, "each has its own"


def test_a_check_that_is_rightly_not_reached_passes(sandbox: Sandbox) -> None:
    tests = """
from mod import solve
def test_a():
    if solve(0) == 5:
        assert solve(1) == 9
"""
    assert passed(sandbox, tests) == {"test_a, line 5": True, "test_a": True}


def test_all_lines_that_run_for_a_check_are_attributed_to_it(sandbox: Sandbox) -> None:
    suite = prepare(
        sandbox, "import mod\ndef test_a():\n    for x in ('point', 1): assert mod.solve(x)"
    )
    output = run(sandbox, suite, coverage=True).outputs[0]
    assert output is not None
    ends = [n for n, line in enumerate(PROGRAM.splitlines(), 1) if "return" in line][-2:]
    assert set(ends) <= output.lines


def test_a_failed_check_reports_actual_and_expected_value(sandbox: Sandbox) -> None:
    suite = prepare(sandbox, "import mod\ndef test_a():\n    assert mod.solve(4) == 6")
    [output] = run(sandbox, suite).outputs
    assert output is not None
    assert (output.kind, output.text, output.arguments) == ("value", "5", "6")


def first_outcome(sandbox: Sandbox, test: str, source: str = PROGRAM) -> tuple[str, str] | None:
    """Kind and text of a test's first check; None if it did not finish."""
    suite = prepare(sandbox, f"import mod\ndef test_a():\n    {test}")
    output = run(sandbox, suite, source).outputs[0]
    return (output.kind, output.text) if output is not None else None


@pytest.mark.parametrize(
    ("test", "kind", "text"),
    [
        (
            "assert mod.solve(1) == len",
            "raise",
            "AssertionError",
        ),  # a function has no canonical text
        ("assert mod.solve(len) == 1", "strange", "an argument cannot"),
        ("assert mod.solve.cache_clear()", "strange", "a candidate can only"),
        ("for x in (1, 2): assert mod.solve(x) == 9", "value", "2"),  # the first
        ("assert mod.solve(-1)", "raise", "WrongError"),
        ("mod.solve(1); raise SystemExit", "raise", "SystemExit"),
    ],
)
def test_a_failed_check_reports_its_cause(
    sandbox: Sandbox, test: str, kind: str, text: str
) -> None:
    found = first_outcome(sandbox, test)
    assert found is not None
    assert found[0] == kind
    assert found[1].startswith(text)


@pytest.mark.parametrize("body", ["return len", "x.append(len)"])
def test_a_value_that_is_not_plain_data_is_strange(sandbox: Sandbox, body: str) -> None:
    found = first_outcome(sandbox, "assert mod.solve([1]) == 1", f"def solve(x):\n    {body}")
    assert found is not None
    assert found[0] == "strange"


@pytest.mark.parametrize(
    "source", ["import os\nos._exit(0)", "def solve(x): return 'x' * (5 << 20)"]
)
def test_a_candidate_without_a_readable_answer_is_lost(sandbox: Sandbox, source: str) -> None:
    assert first_outcome(sandbox, "assert len(mod.solve(1)) == 5 << 20", source) is None


@pytest.mark.parametrize(
    "result",
    [
        "type('E', (int,), {'__eq__': lambda s, o: True, '__hash__': int.__hash__})(x)",
        "[type('E', (int,), {'__eq__': lambda s, o: True})(x)]",
        "type('E', (), {'__eq__': bool, '__lt__': bool, '__contains__': bool})()",
    ],
)
def test_a_value_whose_class_the_candidate_has_added_equals_nothing(
    sandbox: Sandbox, result: str
) -> None:
    tests = """
import unittest
from contextlib import nullcontext
from mod import solve
def test_a():
    assert solve(1) == 2
    assert [2] == [solve(1)]
    assert solve(1) in (2, 3)
    assert 2 in [solve(1)] and solve(1) != 3
    assert all(solve(x) == x + 1 for x in [1])
    assert solve(1) < 3 and 0 < solve(1)
    assert 2 in (1, solve(1))
def test_b():
    with nullcontext(): assert_right(solve(1))
class Sums(unittest.TestCase):
    def test_c(self):
        self.assertEqual(solve(1), second=2)
        self.assertCountEqual(*([solve(1)], [2]))
        self.assertTrue(solve(1) == 2)
        self.assertLess(solve(1), 3)
    def test_d(self):
        with self.subTest(): self.assertIn(solve(1), [2])
def assert_right(value):
    assert value == 2
def test_e():
    assert solve(1)
"""
    suite = replace(prepare(sandbox, tests), within=True)
    right = run(sandbox, suite, PROGRAM)
    assert {output and output.text for output in right.outputs} == {PASSED}
    execution = run(sandbox, suite, PROGRAM.replace("return x + 1", f"return {result}"))
    *compared, kept = execution.outputs
    assert not any(output is not None and output.text == PASSED for output in compared)
    assert kept is not None
    assert kept.text == PASSED


def test_a_class_of_the_program_may_have_its_own_equality(sandbox: Sandbox) -> None:
    program = PROGRAM.replace("return x + 1", "return [Near(x)]")
    program += "class Near(int):\n    def __eq__(self, other): return abs(self - other) < 2\n"
    tests = "from mod import solve\ndef test_a():\n    assert solve(1) == [2]\n"
    suite = replace(prepare(sandbox, tests, program), within=True)
    [output] = run(sandbox, suite, program).outputs
    assert output is not None
    assert output.text == PASSED
