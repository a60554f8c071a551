from __future__ import annotations

import ast

import pytest

from agents.se_darwin.features.statements import FARTHEST, Statements

SOURCE = """
def f(rows, limit):
    unused = 1
    first = rows[0]
    total = first
    for row in rows:
        while row > limit:
            row -= 1
        total += row
    print(unused)
    return total
"""


@pytest.fixture(scope="module")
def definition() -> ast.FunctionDef:
    [node] = ast.parse(SOURCE).body
    assert isinstance(node, ast.FunctionDef)
    return node


@pytest.fixture(scope="module")
def statements(definition: ast.FunctionDef) -> Statements:
    return Statements(definition, {"total": "total", "row": "item"})


def by_line(definition: ast.FunctionDef, line: int) -> ast.AST:
    found = [node for node in ast.walk(definition) if getattr(node, "lineno", 0) == line]
    return next(node for node in found if isinstance(node, ast.stmt))


@pytest.mark.parametrize(
    ("line", "distance"), [(11, 0), (9, 1), (5, 1), (6, 2), (4, 2), (8, 2), (7, 3), (3, FARTHEST)]
)
def test_distance_counts_assignments_and_conditions_up_to_the_result(
    definition: ast.FunctionDef, statements: Statements, line: int, distance: int
) -> None:
    assert statements.distance(by_line(definition, line)) == distance


def test_a_place_names_the_statement_and_its_part(
    definition: ast.FunctionDef, statements: Statements
) -> None:
    places = {
        (node.lineno, ast.unparse(node)): statements.places[id(node)]
        for node in ast.walk(definition)
        if isinstance(node, ast.expr) and id(node) in statements.places
    }
    assert places[7, "limit"] == places[7, "row > limit"] == "While test"
    assert places[8, "1"] == "AugAssign item"
    assert places[6, "rows"] == "For iter"
    assert places[10, "unused"] == "call function"
    assert places[11, "total"] == "Return value"


def test_a_condition_of_a_loop_is_inside_it(
    definition: ast.FunctionDef, statements: Statements
) -> None:
    loops = [statements.loops[id(by_line(definition, line))] for line in (5, 9, 8)]
    assert loops == [0, 1, 2]
    [test] = [node for node in ast.walk(definition) if isinstance(node, ast.Compare)]
    assert statements.loops[id(test)] == 2
