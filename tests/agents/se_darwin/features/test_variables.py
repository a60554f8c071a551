from __future__ import annotations

import ast

import pytest

from agents.se_darwin.features.variables import Variables

SOURCE = """
def f(rows, width, mark='-'):
    lines, best = [], None
    total = 0
    for place, row in enumerate(rows):
        size = len(row)
        for index in range(width):
            total += row[index]
        lines.append(mark.strip())
        if size > 3:
            best = row
    return lines
"""


@pytest.fixture(scope="module")
def variables() -> Variables:
    return Variables(tuple(ast.walk(ast.parse(SOURCE))))


def test_a_role_says_what_a_variable_does(variables: Variables) -> None:
    assert variables.roles == {
        "rows": "parameter",
        "width": "parameter",
        "mark": "parameter",
        "lines": "total",
        "best": "local",
        "total": "total",
        "place": "index",
        "row": "item",
        "size": "local",
        "index": "index",
    }


def test_a_type_is_guessed_where_something_tells_it(variables: Variables) -> None:
    known = {"place": "number", "index": "number", "size": "number", "total": "number"}
    assert {name: variables.types[name] for name in known} == known
    assert (variables.types["lines"], variables.types["mark"]) == ("list", "text")
    assert not {"rows", "row", "best"} & set(variables.types)


@pytest.mark.parametrize(
    ("token", "described"),
    [
        ("total += row[index]", "total += item[index]"),
        ("if not (lines): return -17", "if not (total): return -number"),
        ("len(rows) + 1", "len(parameter) + 1"),
        ("'abc' + '' + 'x' + \"y'z\"", "string + empty + character + string"),
        ("2.5", "float"),
        ("GtE", "GtE"),
    ],
)
def test_a_token_loses_its_names_and_literals(
    variables: Variables, token: str, described: str
) -> None:
    assert variables.describe(token) == described


def test_the_variables_of_a_token_are_found_in_order(variables: Variables) -> None:
    assert variables.names_in("len(rows) - width * rows") == ["rows", "width"]
    assert variables.names_in("GtE") == []


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("size", "number"),
        ("best", "?"),
        ("[size]", "list"),
        ("'a' + x", "text"),
        ("', '.join(x)", "text"),
        ("size < 3", "bool"),
        ("unknown()", "?"),
        ("None", "?"),
    ],
)
def test_the_type_of_an_expression(variables: Variables, expression: str, kind: str) -> None:
    assert variables.type_of(ast.parse(expression, mode="eval").body) == kind
