"""Hidden tests that compare the repaired program with a right one on further expressions."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from benchmarks.se_darwin.foreign.bug import MODULE

_COMPARISON = """\
import types
from itertools import islice

right = types.ModuleType("right")
exec({code!r}, right.__dict__)
{preamble}

def plain(value):
    if isinstance(value, float):
        return "nan" if value != value else float(f"{{value:.9g}}")
    if isinstance(value, dict):
        return {{plain(key): plain(each) for key, each in value.items()}}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(plain, value)]
    if hasattr(value, "__next__"):
        return ["iterator", *map(plain, islice(value, 200))]
    return value


def agree(theirs, expression):
    try:
        wanted = plain(eval(expression, globals() | right.__dict__ | {aliases}))
    except Exception:
        return True  # the right program refuses these arguments
    return plain(theirs()) == wanted
"""


def comparison_tests(
    names: Sequence[str],
    right_code: str,
    expressions: Sequence[str],
    preamble: str = "",
    aliases: Sequence[str] = (),
) -> str:
    """Return a test module that evaluates *expressions* with the program and with *right_code*.

    Expressions that *right_code* refuses with an exception count as passed. Floats are compared to
    nine digits, iterators by their first 200 items.

    Args:
        names: What *expressions* use of the program.
        right_code: Text of a right program.
        expressions: Expressions that call the function.
        preamble: Further statements that the expressions need, such as imports.
        aliases: Names by which the expressions have the program's module.
    """
    lines = [
        _COMPARISON.format(
            code=right_code,
            preamble=f"{preamble}\n" if preamble else "",
            aliases=f"{{{', '.join(f'{name!r}: right' for name in aliases)}}}",
        ),
        "",
        "def test_agreement():",
        *([f"    from {MODULE} import {', '.join(names)}", ""] if names else []),
    ]
    lines += [f"    assert agree(lambda: {each}, {each!r})" for each in expressions]
    return "\n".join(lines) + "\n"


def names_in(expressions: Sequence[str]) -> set[str]:
    """Names that *expressions* read."""
    return {
        node.id
        for each in expressions
        for node in ast.walk(ast.parse(each))
        if isinstance(node, ast.Name)
    }
