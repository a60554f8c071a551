from __future__ import annotations

import pytest

from agents.se_darwin.sandbox import Sandbox, TestSources
from tests.agents.se_darwin.suites import LIMITS, PROGRAM, passed, prepare, run


def test_the_program_is_there_with_its_classes_and_other_functions(sandbox: Sandbox) -> None:
    tests = """
from package.mod import Point, solve, twice
def test_a():
    assert twice(2) == 6
    assert solve("point", 4) == Point(4)
"""
    wrong = PROGRAM.replace("x + 1", "x + 2")
    assert list(passed(sandbox, tests).values()) == [True, True]
    assert list(passed(sandbox, tests, wrong).values()) == [False, True]


def test_a_test_without_asserts_reaches_the_function(sandbox: Sandbox) -> None:
    tests = "import pytest\nfrom mod import solve\ndef test_a():\n"
    tests += "    with pytest.raises(TypeError):\n        solve(None)"
    suite = prepare(sandbox, TestSources(tests))
    [execution] = sandbox.run([PROGRAM], suite, function="solve", coverage=True, limits=LIMITS)
    assert [(output.text, bool(output.lines)) for output in execution.outputs if output] == [
        ("passed", True)
    ]


def test_the_tests_run_under_the_name_of_their_file(sandbox: Sandbox) -> None:
    """Warnings and tracebacks name that file."""
    tests = """
import warnings
import helper
from mod import solve
def test_a():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("now")
        helper.warn()
    assert [each.filename for each in caught] == [__file__, helper.__file__]
    assert solve(1) == 2
"""
    helper = "import warnings\ndef warn():\n    warnings.warn('there')"
    sources = TestSources(tests, helpers={"helper": helper})
    assert list(passed(sandbox, sources).values()) == [True, True]


def test_no_check_runs_after_the_candidate_is_lost(sandbox: Sandbox) -> None:
    tests = """
from mod import solve
def test_a():
    assert solve(1) == 2
    assert solve(2) == 3
def test_b(never=False):
    assert not never or solve(1)
"""
    leaves = PROGRAM.replace(
        "return x + 1", "x == 2 and __import__('os')._exit(0)\n    return x + 1"
    )
    outputs = run(sandbox, prepare(sandbox, tests), leaves).outputs
    assert [output is not None for output in outputs] == [True, False, False]


def test_checks_after_a_hang_do_not_finish(sandbox: Sandbox) -> None:
    tests = """
from mod import solve
def test_a():
    assert solve(1) == 2
    assert solve(2) == 3
def test_b():
    assert solve(1) == 2
"""
    hangs = PROGRAM.replace("return x + 1", "while x == 2: pass\n    return x + 1")
    execution = run(sandbox, prepare(sandbox, tests), hangs)
    assert execution.end == "timeout"
    assert [output is not None for output in execution.outputs] == [True, False, False]


SKIPS = ("import pytest; pytest.skip()", "import unittest; raise unittest.SkipTest")


@pytest.mark.parametrize("skip", SKIPS)
def test_a_candidate_cannot_skip_a_test(sandbox: Sandbox, skip: str) -> None:
    tests = """
import pytest, unittest
from mod import solve
def test_a():
    assert solve(1) == 3
def test_b():
    solve(1)
def test_c():
    if solve(1):
        pytest.skip()
    assert solve(1) == 3
"""
    names = ["test_a, line 5", "test_b", "test_c, line 11"]
    candidate = f"def solve(x, low=0):\n    {skip}\n"
    assert passed(sandbox, tests, candidate) == dict.fromkeys(names, False)
    assert passed(sandbox, tests) == dict(zip(names, (False, True, True), strict=True))
