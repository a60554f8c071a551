from __future__ import annotations

import ast
import inspect
import textwrap
from random import Random

import pytest

from agents.se_darwin.edits import EDIT_KINDS, EditSpace
from agents.se_darwin.edits.rewrite import rewrite

SOURCE = '''# head
def area(x,  y):   # keep
    """Doc 'é'."""
    a = x*(y + 1)    # odd   spacing
    é = "ü"; b = x - y  # after

    if (x
            < y):
        return a   if b else  é
    return f"{a}{b:>{x}}"
'''


def syntax_tree(program: str) -> str:
    return ast.dump(ast.parse(program))


def test_only_what_changed_is_rewritten() -> None:
    space = EditSpace(SOURCE, "area")
    [comparison] = [e for e in space.edits if (e.kind, e.new) == ("comparison", "LtE")]
    [arithmetic] = [e for e in space.edits if (e.old, e.new) == ("Mult", "Add")]
    written = rewrite(SOURCE, space.program([comparison, arithmetic]))
    assert written == SOURCE.replace("x*(y + 1)", "x + (y + 1)").replace(
        "x\n            < y", "x <= y"
    )


def test_parentheses_come_where_the_meaning_needs_them() -> None:
    written = "def f(a, b):\n    return a * b  # product\n"
    assert rewrite(written, "def f(a, b):\n    return a * (b + 1)\n") == (
        "def f(a, b):\n    return a * (b + 1)  # product\n"
    )


def test_every_edit_keeps_its_meaning_and_the_comments() -> None:
    space = EditSpace(SOURCE, "area")
    for edit in space.edits[::7]:
        repaired = space.program([edit])
        written = rewrite(SOURCE, repaired)
        assert syntax_tree(written) == syntax_tree(repaired)
        if edit.kind not in EDIT_KINDS[:19]:
            continue
        assert {"# head", "# keep", "# odd   spacing", "# after"} <= {
            part.strip() for part in written.replace("#", "\n#").splitlines()
        }, edit


@pytest.mark.parametrize("seed", range(4))
def test_several_edits_in_real_code(seed: int) -> None:
    written = inspect.getsource(textwrap.indent) + inspect.getsource(textwrap.dedent)
    space = EditSpace(written, "dedent")
    rng = Random(seed)
    edits = {edit.node: edit for edit in rng.sample(space.edits, 3)}
    try:
        repaired = space.program(edits.values())
    except ValueError:
        pytest.skip("these three edits do not go together")
    result = rewrite(written, repaired)
    assert syntax_tree(result) == syntax_tree(repaired)
    assert "# Look for the longest leading string" in result or result == repaired


def test_what_cannot_be_placed_is_written_whole() -> None:
    assert rewrite("def f(): return 1", "def f(x):\n    return 1") == "def f(x):\n    return 1"


def test_rewritten_lines_end_like_the_others() -> None:
    written = "def f():\r\n    return 1\r\n"
    assert rewrite(written, "def f(x):\n    return 1") == written.replace("f()", "f(x)")
