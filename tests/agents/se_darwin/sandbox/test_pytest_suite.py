from __future__ import annotations

from collections.abc import Iterator

import pytest

from agents.se_darwin.sandbox import PytestSuiteError, Sandbox, TestSources
from tests.agents.se_darwin.suites import open_pytest_sandbox, passed, prepare

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
        ("nothing", "no test of those that match 'nothing' calls solve"),
        ("a b", "does not select tests"),
        ("f(x)", "does not select tests"),
        ("(" * 500, "does not select tests"),
    ],
)
def test_a_keyword_selects_tests_by_name(sandbox: Sandbox, keyword: str, names: str) -> None:
    tests = "import mod\ndef test_a(): mod.solve(1)\nclass TestRest:\n"
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
        (
            "import mod\nopen('x')\ndef test_a(): mod.solve(1)",
            "uses the file x, which the sandbox f",
        ),
        ("import mod", "def test_"),
        ("import mod\ndef test_a():\n    assert mod.Point(1)", "no test calls solve"),
        ("import mod\nclass TestA: pass", "no function `def test_"),
        ("import mod\nasync def test_a(): mod.solve(1)", "test_a is asynchronous"),
        ("import mod\ndef test_a():\n    assert mod.solve(1) == 7\n    yield", "`yield`"),
        ("import mod, pytest\npytestmark = pytest.mark.skip\n" + ONE, "are skipped"),
        ("import mod, pytest\npytestmark = [pytest.mark.skip('no')]\n" + ONE, "are skipped"),
        ("import mod, pytest\n@pytest.mark.skip\n" + ONE, "tests of solve are skipped"),
        (
            "import mod\ndef test_a(tmp_path): mod.solve(1)",
            "needs tmp_path: this sandbox has no files",
        ),
        (
            "import mod\ndef test_a(mocker): mod.solve(1)",
            "needs mocker: only caplog, capsys, monkey",
        ),
        (
            "import mod\n1 / 0\ndef test_a(): mod.solve(1)",
            "importing the program and its tests raised ZeroDivisionError: division by zero$",
        ),
        ("from mod import nothing, solve\ndef test_a(): solve(1)", "cannot import name 'nothing'"),
        ("import mod, sys\nsys.exit(3)\ndef test_a(): mod.solve(1)", "raised SystemExit: 3"),
        ("import mod\nwhile True: pass\n" + ONE, "importing mod.py or its tests takes 5 s or more"),
        ("import mod, os\nos._exit(0)\n" + ONE, "importing mod.py or its tests ends Python"),
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
