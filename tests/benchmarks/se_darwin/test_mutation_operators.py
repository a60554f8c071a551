import ast

import pytest

from agents.se_darwin.edits import EditSpace
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


@pytest.mark.process  # tries thousands of edits
def test_few_operators_are_undone_by_a_single_edit_of_the_agent(mutants):
    original = ast.unparse(ast.parse(SOURCE))
    undone = set()
    for kind, source in mutants:
        space = EditSpace(source, "f")
        if any(space.program({edit}) == original for edit in space.edits):
            undone.add(kind)
    assert undone == {"call unwrapped", "statement repeated", "term dropped"}


def test_only_the_named_function_is_mutated():
    other = "def g(x):\n    print('hello')\n    return x\n"
    mutants = list(out_of_grammar_mutants(SOURCE + other, "f"))
    assert all("print('hello')" in source for _, source in mutants)
