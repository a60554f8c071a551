from __future__ import annotations

import ast
import inspect
import subprocess
import textwrap
from pathlib import Path
from random import Random

import pytest

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.report import unified_diff
from agents.se_darwin.rewrite import rewrite

WRITTEN = '''# head
def area(x,  y):   # keep
    """Doc 'é'."""
    a = x*(y + 1)    # odd   spacing
    é = "ü"; b = x - y  # after

    if (x
            < y):
        return a   if b else  é
    return f"{a}{b:>{x}}"
'''


def meaning(program: str) -> str:
    return ast.dump(ast.parse(program))


def test_only_what_changed_is_written_anew() -> None:
    space = EditSpace(WRITTEN, "area")
    [comparison] = [e for e in space.edits if (e.kind, e.new) == ("comparison", "LtE")]
    [arithmetic] = [e for e in space.edits if (e.old, e.new) == ("Mult", "Add")]
    written = rewrite(WRITTEN, space.program([comparison, arithmetic]))
    assert written == WRITTEN.replace("x*(y + 1)", "x + (y + 1)").replace(
        "x\n            < y", "x <= y"
    )


def test_parentheses_come_where_the_meaning_needs_them() -> None:
    written = "def f(a, b):\n    return a * b  # product\n"
    assert rewrite(written, "def f(a, b):\n    return a * (b + 1)\n") == (
        "def f(a, b):\n    return a * (b + 1)  # product\n"
    )


def test_every_edit_keeps_its_meaning_and_the_comments() -> None:
    space = EditSpace(WRITTEN, "area")
    for edit in space.edits:
        repaired = space.program([edit])
        written = rewrite(WRITTEN, repaired)
        assert meaning(written) == meaning(repaired)
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
        pytest.skip("these three do not go together")
    result = rewrite(written, repaired)
    assert meaning(result) == meaning(repaired)
    assert "# Look for the longest leading string" in result or result == repaired


def test_what_cannot_be_placed_is_written_whole() -> None:
    assert rewrite("def f(): return 1", "def f(x):\n    return 1") == "def f(x):\n    return 1"


@pytest.mark.parametrize(
    "written",
    [
        "def f(x):\r\n    # all\r\n    y = 1\r\n    z = 2\r\n    return x - y\r\n",
        "def f(x):\n    y = 1\n\x0c\n    z = 'a\u2028b'\n    return x - y",
    ],
)
def test_the_diff_applies_whatever_ends_the_lines(written: str, tmp_path: Path) -> None:
    space = EditSpace(written, "f")
    [edit] = [edit for edit in space.edits if (edit.kind, edit.new) == ("arithmetic", "Add")]
    repaired = rewrite(written, space.program([edit]))
    assert repaired == written.replace("x - y", "x + y")
    (tmp_path / "f.py").write_bytes(written.encode())
    diff = unified_diff(written, repaired, "f.py").encode()
    subprocess.run(["git", "apply", "-"], input=diff, cwd=tmp_path, check=True)
    assert (tmp_path / "f.py").read_bytes() == repaired.encode()


def test_lines_that_are_written_anew_end_as_the_others() -> None:
    written = "def f():\r\n    return 1\r\n"
    assert rewrite(written, "def f(x):\n    return 1") == written.replace("f()", "f(x)")
