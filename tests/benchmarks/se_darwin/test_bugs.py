import ast

import pytest

from agents.se_darwin.edits import EditSpace
from benchmarks.se_darwin.bugs import fold_modules, handwritten_bugs
from benchmarks.se_darwin.mutation_operators import OPERATORS, out_of_grammar_mutants

SOURCE = """
def f(items, low):
    total = 0
    log = ['start', 'end']
    for item in items:
        if item > low and item < 50:
            total += abs(item) + low * 4
            log.append(str(item))
        if total > 100:
            return total
    return len(log) + total
"""


@pytest.fixture(scope="module")
def mutants():
    return list(out_of_grammar_mutants(SOURCE, "f"))


def test_every_operator_makes_mutants_that_are_programs(mutants):
    assert {kind for kind, _ in mutants} == set(OPERATORS)
    for _, source in mutants:
        ast.parse(source)
    assert len(set(mutants)) == len(mutants)


def test_no_single_edit_of_the_agent_undoes_them(mutants):
    original = ast.unparse(ast.parse(SOURCE))
    for kind, source in mutants:
        space = EditSpace(source, "f")
        undone = [str(edit) for edit in space.edits if space.program({edit}) == original]
        assert undone == [], kind


def test_only_the_named_function_is_mutated():
    other = "def g(x):\n    print('hello')\n    return x\n"
    mutants = list(out_of_grammar_mutants(SOURCE + other, "f"))
    assert all("print('hello')" in source for _, source in mutants)


def test_every_handwritten_bug_fails_a_test_and_hidden_tests_differ(recorded):
    bugs = handwritten_bugs(recorded, seed=0)
    assert 10 <= len(bugs) <= 20
    assert len({bug.module for bug in bugs}) == len(bugs)
    for bug in bugs:
        assert bug.task.hidden_tests
        visible = {repr(test.arguments) for test in bug.task.tests}
        assert not visible & {repr(test.arguments) for test in bug.task.hidden_tests}


def test_folds_hold_whole_modules_and_as_much_each(recorded):
    bugs = handwritten_bugs(recorded, seed=0)
    fold_of = fold_modules(bugs, 3)
    assert set(fold_of.values()) == {0, 1, 2}
    sizes = [0, 0, 0]
    for bug in bugs:
        sizes[fold_of[bug.module]] += len(bug.task.space.edits)
    assert max(sizes) < 1.5 * min(sizes)
