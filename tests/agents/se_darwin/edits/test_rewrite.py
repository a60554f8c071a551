from __future__ import annotations

import ast
import inspect
import textwrap
from random import Random

import pytest

from agents.se_darwin.edits import EditSpace
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


def comments(program: str) -> set[str]:
    return {part.strip() for part in program.replace("#", "\n#").splitlines() if "#" in part}


def test_parentheses_go_that_the_meaning_needs_no_longer() -> None:
    written = "def f(a, b):\n    return(a - 1) * (1 - b)  # product\n"
    assert rewrite(written, "def f(a, b):\n    return a * b\n") == (
        "def f(a, b):\n    return(a) * b  # product\n"
    )
    called = "def f(a, b):\n    return g(a - b)\n"
    assert rewrite(called, "def f(a, b):\n    return g(a)\n") == called.replace(" - b", "")


def test_a_text_keeps_its_quotes_and_a_yield_gets_no_parentheses() -> None:
    written = 'def f(a):\n    yield a\n    f(open(a, "a"))  # all\n'
    changed = "def f(a):\n    yield a\n    yield from f(open(a, 'w'))\n"
    once = rewrite(written, changed.replace("yield from ", ""))
    assert once == written.replace('"a"', '"w"')
    assert "    yield from f(open(a, 'w'))  # all\n" in rewrite(once, changed)


def test_a_part_of_an_f_string_that_changes_takes_the_string_with_it() -> None:
    written = 'def f(a):\n    return f"{a:.1f} %"  # rate\n'
    assert rewrite(written, "def f(a):\n    return f'{a:.2f} %'\n") == (
        "def f(a):\n    return f'{a:.2f} %'  # rate\n"
    )


@pytest.mark.process
def test_every_edit_keeps_its_meaning_and_the_comments() -> None:
    """Except the comments of a statement that it removes or joins with another."""
    source = SOURCE.replace('"; b =', '"\n    b =')
    space = EditSpace(source, "area")
    for edit in space.edits:
        repaired = space.program([edit])
        written = rewrite(source, repaired)
        assert syntax_tree(written) == syntax_tree(repaired)
        may_lose = edit.kind == "statement_removed" or edit.new == "with the next"
        assert len(comments(source) - comments(written)) <= may_lose


@pytest.mark.process
def test_two_statements_on_one_line_keep_their_meaning() -> None:
    space = EditSpace(SOURCE, "area")
    for edit in space.edits:
        if edit.new.startswith(("é", "b")) or edit.old.startswith(("é", "b")):
            repaired = space.program([edit])
            assert syntax_tree(rewrite(SOURCE, repaired)) == syntax_tree(repaired)


BLOCKS = """\
# head
def total(rows):  # keep
    amount = 0  # start
    # about the loop
    for row in rows:
        if row > 1:
            # within
            amount += row  # step
            rows.append( 2 )
        else:
            # otherwise
            amount -= 1
    return amount   # last
"""


@pytest.mark.parametrize(
    ("kind", "old", "new", "before", "after"),
    [
        ("statement_removed", "amount = 0", "nothing", "    amount = 0  # start\n", ""),
        (
            "statement_removed",
            "rows.append(2)",
            "nothing",
            "            rows.append( 2 )\n",
            "",
        ),
        (
            "statement_moved",
            "rows.append(2)",
            "after its block",
            "            rows.append( 2 )\n        else:\n            # otherwise\n"
            "            amount -= 1\n",
            "        else:\n            # otherwise\n            amount -= 1\n"
            "        rows.append( 2 )\n",
        ),
        (
            "branch_unwrapped",
            "If else",
            "nothing",
            "        else:\n            # otherwise\n            amount -= 1\n",
            "",
        ),
        (
            "exit_added",
            "after",
            "break",
            "            rows.append( 2 )\n",
            "            rows.append( 2 )\n            break\n",
        ),
        (
            "guard_added",
            "before",
            "if not rows: return 0",
            "    amount = 0  # start\n",
            "    if not rows:\n        return 0\n    amount = 0  # start\n",
        ),
        (
            "statement_guarded",
            "nothing",
            "if row > 1",
            "    amount = 0  # start\n",
            "    if row > 1:\n        amount = 0  # start\n",
        ),
    ],
)
def test_statements_come_and_go_by_the_line(
    kind: str, old: str, new: str, before: str, after: str
) -> None:
    space = EditSpace(BLOCKS, "total")
    assert BLOCKS.count(before) == 1
    wanted = BLOCKS.replace(before, after)
    made = [
        rewrite(BLOCKS, space.program([edit]))
        for edit in space.edits
        if (edit.kind, edit.old, edit.new) == (kind, old, new)
    ]
    assert wanted in made


def test_a_tab_indents_what_is_inserted() -> None:
    written = "def f(x):\n\tx += 1  # one\n\treturn x\n"
    repaired = "def f(x):\n    if not x:\n        return x\n    x += 1\n    return x\n"
    assert rewrite(written, repaired) == (
        "def f(x):\n\tif not x:\n\t    return x\n\tx += 1  # one\n\treturn x\n"
    )


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
