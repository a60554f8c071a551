import ast
import sys
from collections import Counter
from collections.abc import Callable
from types import ModuleType

import pytest

from benchmarks.se_darwin.foreign.trial import problem_of
from benchmarks.se_darwin.foreign.written_bugs import read_written, written_bugs

Outcomes = Callable[[str, str], list[bool]]


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> Outcomes:
    """Whether each test function of a test module passes on a program."""

    def run(code: str, test_code: str) -> list[bool]:
        program = ModuleType("program")
        exec(code, program.__dict__)
        monkeypatch.setitem(sys.modules, "program", program)
        tests = ModuleType("test_program")
        exec(test_code, tests.__dict__)
        return [_passes(test) for name, test in vars(tests).items() if name.startswith("test_")]

    return run


def _passes(test: Callable[[], None]) -> bool:
    try:
        test()
    except (Exception, pytest.fail.Exception):
        return False
    return True


@pytest.mark.parametrize("source", ["written", "practice"])
def test_right_programs_pass_all_tests_and_wrong_ones_do_not(
    outcomes: Outcomes, source: str
) -> None:
    for bug in written_bugs(source):
        assert all(outcomes(bug.right_code, bug.test_code)), bug.name
        assert all(outcomes(bug.right_code, bug.hidden_test_code)), bug.name
        assert not all(outcomes(bug.code, bug.test_code)), bug.name
        assert not all(outcomes(bug.code, bug.hidden_test_code)), bug.name


@pytest.mark.process
def test_programs_of_the_workplace_are_bugs_in_the_sandbox() -> None:
    bugs = written_bugs("workplace")
    assert len(bugs) == 36
    problems = {bug.name: problem_of(bug) for bug in bugs[::6]}
    assert not any(problems.values()), problems


def test_each_function_is_in_its_program() -> None:
    for bug in written_bugs():
        *classes, name = bug.function.split(".")
        scope: ast.AST = ast.parse(bug.code)
        for part in [*classes, name]:
            scope = next(
                node
                for node in ast.iter_child_nodes(scope)
                if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == part
            )


def test_faults_are_spread_evenly() -> None:
    written = read_written()
    assert len(written) == 60
    assert len({each.bug.name for each in written}) == 60
    assert sum(len(each.fault_classes) == 2 for each in written) == 12
    counts = Counter(name for each in written for name in each.fault_classes)
    assert set(counts.values()) == {3}
    assert len(counts) == 24
