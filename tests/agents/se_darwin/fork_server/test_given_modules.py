from __future__ import annotations

import pytest

from agents.se_darwin.sandbox import ProgramSources, PytestSuite, Sandbox, TestSources
from tests.agents.se_darwin.suites import LIMITS, PROGRAM, passed, prepare, run


@pytest.mark.parametrize("module", ["mod", "tests.mod"])
def test_a_package_of_the_tests_may_be_named_tests(sandbox: Sandbox, module: str) -> None:
    sources = TestSources(
        f"from {module} import solve\n"
        "from tests.numbers import ONE\n"
        "def test_a(): assert solve(ONE) == 2",
        helpers={"tests.numbers": "ONE = 1"},
    )
    suite = prepare(sandbox, sources, module=module)
    assert [
        case.passes(each)
        for case, each in zip(suite.cases(), run(sandbox, suite).outputs, strict=True)
    ] == [True]


@pytest.mark.parametrize(
    "line",
    [
        "from package.inner import mod",
        "from package.inner import mod as mod",
        "from . import mod",
        "from .inner import mod",
        "import package.mod as mod",
        "import package.inner.mod; mod = package.inner.mod",
    ],
)
def test_the_program_may_be_imported_as_a_module_of_a_package(sandbox: Sandbox, line: str) -> None:
    tests = f"""
from pathlib import Path
{line}
HERE = Path(__file__).parent
def test_a():
    assert mod.solve(1) == 2
"""
    assert list(passed(sandbox, tests).values()) == [True]


def test_a_standard_function_of_the_programs_name_stays_what_it_is(sandbox: Sandbox) -> None:
    tests = """
import sep
from os import sep as separator
def test_a():
    assert sep.solve(0) == len(separator)
"""
    suite = prepare(sandbox, tests, module="sep")
    [output] = run(sandbox, suite).outputs
    assert output is not None
    assert output.text == "passed"


def test_a_module_that_is_not_there_is_not_found(sandbox: Sandbox) -> None:
    program = "try:\n    import numpy\nexcept ImportError:\n    numpy = 0\n" + PROGRAM
    suite = prepare(sandbox, "import mod\ndef test_a():\n    assert mod.solve(1) == 2", program)
    assert len(suite.checks) == 1


PACKAGE = {
    "shop.__init__": "from . import lines, mod\nfrom .mod import solve\nfrom . import tables",
    "shop.tables": "from .mod import solve\nTABLE, ROW = {'solve': solve}, [solve]",
    "shop.lines": "class Line:\n    def __init__(self, n):\n        self.n = n",
}

IN_PACKAGE = """
from .lines import Line
def solve(line):
    return Line(line.n + 1)
"""


@pytest.mark.parametrize(
    "use",
    [
        "shop.solve(Line(1)).n == 2",
        "shop.tables.TABLE['solve'](Line(1)).n == 2",
        "shop.tables.ROW[0](Line(1)).n == 2",
        "mod.solve(Line(1)).n == 2 and type(mod.solve(Line(1))) is Line",
        "again(Line(1)).n == 2",
    ],
)
def test_a_program_imports_modules_of_its_own(sandbox: Sandbox, use: str) -> None:
    tests = TestSources(
        "import shop\nfrom shop import mod\nfrom shop.lines import Line\n"
        f"from .mod import solve as again\ndef test_a():\n    assert {use}",
        aliases={"lines": "shop.lines"},
    )
    suite = PytestSuite.prepare(tests, ProgramSources(IN_PACKAGE, "shop.mod", PACKAGE), "solve")
    suite = sandbox.collect(suite, function="solve", limits=LIMITS)
    wrong = IN_PACKAGE.replace("+ 1", "- 1")
    right, other = sandbox.run([IN_PACKAGE, wrong], suite, function="solve", limits=LIMITS)
    assert [output and output.text for output in right.outputs] == ["passed"]
    assert [output and output.text for output in other.outputs] != ["passed"]
