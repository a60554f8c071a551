from __future__ import annotations

from collections.abc import Iterator

import pytest

from agents.se_darwin.sandbox import (
    ProgramSources,
    PytestSuite,
    PytestSuiteError,
    Sandbox,
    TestSources,
)
from tests.agents.se_darwin.suites import LIMITS, open_pytest_sandbox, passed, prepare

SHOP = {"shop.__init__": "Point = twice = 1"}
ONE = "def test_a(): mod.solve(1)"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with open_pytest_sandbox() as sandbox:
        yield sandbox


def test_tests_of_other_things_are_left_out(sandbox: Sandbox) -> None:
    tests = """
import mod
from mod import Point, twice as double
VALUES = [1, 2]
def check(value):
    assert double(value) == 2 * value + 2
def test_point():
    while Point(1): pass
def test_a():
    for value in VALUES:
        check(value)
"""
    assert passed(sandbox, tests) == {"test_a": True}


@pytest.mark.parametrize(
    ("keyword", "names"),
    [
        ("", "abc"),
        ("test_a or Rest", "abc"),
        ("TEST_A", "a"),
        ("not a and (test_b or x)", "b"),
        ("nothing", "-k 'nothing'"),
        ("other", "'other' calls solve"),
        ("a b", "select tests"),
        ("f(x)", "select tests"),
        ("(" * 500, "select tests"),
    ],
)
def test_a_keyword_selects_tests_by_name(sandbox: Sandbox, keyword: str, names: str) -> None:
    tests = "import mod\ndef test_a(): mod.solve(1)\nclass TestRest:\n"
    tests += "    def test_other(self): pass\n"
    tests += "".join(f"    def test_{each}(self): mod.solve(1)\n" for each in "bc")
    sources = TestSources(tests, keyword=keyword)
    if len(names) > 3:
        with pytest.raises(PytestSuiteError, match=names):
            prepare(sandbox, sources)
    else:
        found = prepare(sandbox, sources).checks
        assert [each[-1] for each in found] == list(names)


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("def test_a(:", "not Python"),
        ("import mod\0", "not Python"),
        ("def test_a():\n    assert 1", "import the program"),
        ("import mod\nopen('x')\ndef test_a(): mod.solve(1)", "the file x"),
        ("import mod", "def test_"),
        ("import mod\ndef test_a():\n    assert mod.Point(1)", "calls solve"),
        ("import mod\nclass TestA: pass", "`def test_"),
        ("import mod\ndef test_a():\n    assert mod.solve(1) == 7\n    yield", "`yield`"),
        ("import mod, pytest\npytestmark = pytest.mark.skip\n" + ONE, "are skipped"),
        ("import mod, pytest\npytestmark = [pytest.mark.skip('no')]\n" + ONE, "are skipped"),
        ("import mod, pytest\n@pytest.mark.skip\n" + ONE, "solve are skipped"),
        ("import mod\ndef test_a(tmp_path): mod.solve(1)", "needs tmp_path"),
        ("import mod\ndef test_a(mocker): mod.solve(1)", "mocker: only caplog, capsys, monkey"),
        ("import mod\n1 / 0\ndef test_a(): mod.solve(1)", "ZeroDivisionError: division by zero$"),
        ("from mod import nothing, solve\ndef test_a(): solve(1)", "name 'nothing'"),
        ("import mod, sys\nsys.exit(3)\ndef test_a(): mod.solve(1)", "raised SystemExit: 3"),
        ("import mod\nwhile True: pass\n" + ONE, "mod.py .* 5 s"),
        ("import mod, os\nos._exit(0)\n" + ONE, "mod.py .*ends Python"),
        ("import mod, pytest\n@pytest.mark.xfail\ndef test_a(): mod.solve(1)", "are skipped"),
        (
            "import mod, pytest\n@pytest.mark.parametrize('a', [1], indirect=True)\n"
            "def test_a(a): mod.solve(a)",
            "test_a needs a: only",
        ),
    ],
)
def test_tests_that_cannot_be_run_are_refused_by_name(
    sandbox: Sandbox, tests: str, message: str
) -> None:
    with pytest.raises(PytestSuiteError, match=message):
        prepare(sandbox, tests)


def test_classes_inherit_tests(sandbox: Sandbox) -> None:
    tests = """
from unittest import TestCase
from base import Shared
from mod import solve
class Numbers(TestCase):
    start = 1
    def test_one(self):
        self.assertEqual(solve(self.start), 2)
    def test_two(self):
        assert solve(0) == 0
class More(Numbers):
    def test_two(self):
        assert solve(1) == 2
class TestShared(Shared):
    start = 4
class TestOther(Shared):
    start = 6
"""
    helper = """
class Shared:
    def test_start(self):
        from mod import solve
        assert solve(self.start) == 5
        assert solve(2) == 3
"""
    assert passed(sandbox, TestSources(tests, helpers={"base": helper})) == {
        "Numbers.test_one, line 8": True,
        "Numbers.test_two, line 10": False,
        "More.test_one, line 8": True,
        "More.test_two, line 13": True,
        "TestShared.test_start, line 5": True,
        "TestShared.test_start, line 6": True,
        "TestOther.test_start, line 5": False,
        "TestOther.test_start, line 6": True,
    }


def test_a_module_of_the_tests_may_have_the_last_name_of_the_program(sandbox: Sandbox) -> None:
    tests = "from tests.mod import wanted\nfrom mod import solve\n"
    tests += "def test_a():\n    assert solve(1) == wanted\n"
    sources = TestSources(tests, helpers={"tests.mod": "wanted = 2"})
    assert passed(sandbox, sources) == {"test_a, line 4": True}


def test_what_a_module_of_the_program_contains_need_not_be_a_module(sandbox: Sandbox) -> None:
    tests = "from shop import mod, Point, twice\n"
    tests += "def test_a():\n    assert mod.solve(1) == 2\n    assert Point == twice\n"
    program = ProgramSources("def solve(x):\n    return x + 1", "shop.mod", SHOP)
    suite = PytestSuite.prepare(TestSources(tests), program, "solve")
    assert suite.modules == ()
    suite = sandbox.collect(suite, function="solve", limits=LIMITS)
    [execution] = sandbox.run([program.code], suite, function="solve", limits=LIMITS)
    assert [output.text for output in execution.outputs if output] == ["passed", "passed"]
