"""Compared with the real pytest, which collects the same file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agents.se_darwin.sandbox import ProgramSources, PytestSuite, PytestSuiteError, TestSources
from agents.se_darwin.sandbox.keyword_selection import KeywordError, selector

TESTS = """
import pytest
from base import Shared
from mod import solve

slow = pytest.mark.slow
pytestmark = [pytest.mark.unit]

@slow
def test_a():
    assert solve(1)

@pytest.mark.net(reason="x")
class TestRest:
    pytestmark = pytest.mark.quick
    def test_b(self):
        assert solve(1)
    class TestInner:
        @pytest.mark.skipif(False, reason="never")
        def test_c(self):
            assert solve(1)

class TestMore(Shared):
    def test_d(self):
        assert solve(1)
"""
BASE = """
import pytest
from mod import solve

@pytest.mark.shared
class Shared:
    def test_s(self):
        assert solve(1)
"""
KEYWORDS = [
    *("", " ", "test_a or Rest", "TEST_A", "not a and (test_b or x)", "slow", "not slow", "net"),
    *("quick", "unit", "shared", "skipif", "inner", "test_mod.py", "calc_tests", "nothing"),
    *("TestRest.test_b", "TestMore and not test_d", "1 or -", "_a", "not not slow"),
]


def collected_by_pytest(folder: Path) -> dict[str, set[str]]:
    """Names of the tests that each keyword selects."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "mod.py").write_text("def solve(x): return x\n")
    (folder / "base.py").write_text(BASE)
    (folder / "calc_tests").mkdir()
    (folder / "calc_tests" / "test_mod.py").write_text(TESTS)
    script = (
        "import pytest, sys\n"
        "for keyword in sys.argv[1:]:\n"
        "    print('keyword:', repr(keyword), flush=True)\n"
        "    pytest.main(['-q', '--collect-only', '-p', 'no:cacheprovider',\n"
        "        '-W', 'ignore', '-k', keyword, 'calc_tests'])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, *KEYWORDS],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    outputs = run.stdout.split("keyword: ")[1:]
    return {
        keyword: {
            line.partition("::")[2].replace("::", ".")
            for line in output.splitlines()
            if "::" in line
        }
        for keyword, output in zip(KEYWORDS, outputs, strict=True)
    }


def test_keywords_select_what_pytest_selects(tmp_path: Path) -> None:
    program = ProgramSources("def solve(x): return x\n", "mod")
    for keyword, expected in collected_by_pytest(tmp_path).items():
        sources = TestSources(
            TESTS, helpers={"base": BASE}, keyword=keyword, path="calc_tests/test_mod.py"
        )
        if expected:
            suite = PytestSuite.prepare(sources, program, "solve")
            assert set(suite.assert_lines) == expected, keyword
        else:
            with pytest.raises(PytestSuiteError, match="matches -k"):
                PytestSuite.prepare(sources, program, "solve")


@pytest.mark.parametrize("keyword", ["a b", "f(x)", "(", "()", "a and", "a = 1", "(" * 5000, "'a'"])
def test_other_text_is_refused(keyword: str) -> None:
    with pytest.raises(KeywordError, match="select tests"):
        selector(keyword)
