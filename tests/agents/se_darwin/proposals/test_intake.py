from __future__ import annotations

import ast

import pytest

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.proposals.intake import MOST_CHARACTERS, DroppedProposalError, read_proposal

MODULE = '''
import math

LIMIT = 3


class Cart:
    def add(self, item):
        self.items.append(item)

    def total(self) -> int:
        """Cents."""
        return sum(self.items)


def other(x):
    return x


def solve(items: list[int], low=0):
    """Sum."""
    return sum(items)
'''


NAME = "using a name that is not allowed"


def _read(code: str, function: str = "solve") -> str:
    space = EditSpace(MODULE, function)
    proposal = read_proposal(space, code)
    assert proposal.source == space.program(proposal.edits)
    return proposal.source


def test_docstring_decorators_and_annotations_stay() -> None:
    source = _read('@cache\ndef solve(items, low: float = 0) -> None:\n    "Mine."\n    return 1\n')
    assert 'def solve(items: list[int], low=0):\n    """Sum."""\n    return 1' in source
    assert "cache" not in source


def test_a_method_may_stand_alone_or_in_its_class() -> None:
    alone = _read("def total(self):\n    return 1", "Cart.total")
    inside = _read("class Cart:\n    def total(self):\n        return 1", "Cart.total")
    assert alone == inside
    assert "-> int:" in alone
    assert "def add(self, item):" in alone


def test_imports_and_new_functions_move_into_the_function() -> None:
    code = (
        "from collections import deque\nimport math\n\n"
        "def helper(x):\n    return x + 1\n\n"
        "def solve(items, low=0):\n    return helper(math.floor(deque(items)[0]))\n"
    )
    space = EditSpace(MODULE, "solve")
    proposal = read_proposal(space, code)
    definition = ast.parse(proposal.source).body[-1]
    assert isinstance(definition, ast.FunctionDef)
    kinds = [type(node).__name__ for node in definition.body]
    assert kinds == ["Expr", "ImportFrom", "FunctionDef", "Return"], "math is there already"
    assert proposal.modules == {"collections"}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("I cannot help with that.", "not Python"),
        ("def solve(items:\n    return", "not Python"),
        ("", "without the function"),
        ("def other_name(x):\n    return x", "without the function"),
        ("async def solve(items, low=0):\n    return 1", "without the function"),
        ("solve = eval", "without the function"),
        (MODULE, "the given program"),
        (MODULE.replace("return x", "return 2 * x"), "another definition changed"),
        (MODULE + "\nclass New:\n    pass\n", "another definition changed"),
        ("def solve(i):\n    return 1\n\ndef test_solve():\n    assert 1", "with tests of its own"),
        ("import subprocess\ndef solve(i):\n    return subprocess.run(i)", None),
        ("def solve(i):\n    import ctypes\n    return ctypes", None),
        ("def solve(i):\n    from . import secrets\n    return secrets", None),
        ("def solve(i):\n    return __import__('os')", NAME),
        ("def solve(i):\n    return eval(i)", NAME),
        ("def solve(i, run=compile):\n    return run(i)", NAME),
        ("import re\ndef solve(i):\n    return re.enum.sys", NAME),
        ("from enum import sys as s\ndef solve(i):\n    return s", NAME),
        ("import sys\ndef solve(i):\n    return sys", None),
        ("def solve(i):\n    return " + "(" * 500 + "1" + ")" * 500, "not Python"),
        ("def solve(i):\n    return " + "-" * 20_000 + "1", None),
        ("def solve(i):\n    return '\ud800'", "not Python"),
        ("def solve(i):\n    return 1 \x00", "not Python"),
        ("def solve(i):\n    yield = 1", "not Python"),
        ("#" * (MOST_CHARACTERS + 1), "longer than a function"),
    ],
)
def test_what_cannot_be_run_is_dropped_for_a_reason(code: str, reason: str | None) -> None:
    with pytest.raises(DroppedProposalError) as dropped:
        _read(code)
    allowed = (reason,) if reason else ("with an import that is not allowed", "not Python")
    assert str(dropped.value) in allowed


def test_names_of_methods_and_of_given_imports_are_allowed() -> None:
    code = "import re\ndef solve(items, low=0):\n    return re.compile('1').sub('', items)"
    assert "re.compile" in _read(code)
    space = EditSpace("import sys\ndef solve(x):\n    return x", "solve")
    code = "def solve(x):\n    return min(x, sys.maxsize)"
    assert "sys.maxsize" in read_proposal(space, code).source


def test_another_method_that_changes_drops_it() -> None:
    changed = (
        "class Cart:\n    def add(self, x):\n        pass\n    def total(self):\n        return 1"
    )
    with pytest.raises(DroppedProposalError, match="another definition changed"):
        _read(changed, "Cart.total")


def test_control_characters_in_a_text_are_escaped_in_the_program() -> None:
    source = _read("def solve(items, low=0):\n    return f'\\x1b[2J{low}\u202e' + '\\x07\u2028'")
    assert source.isascii()
    assert source.replace("\n", "").isprintable()
