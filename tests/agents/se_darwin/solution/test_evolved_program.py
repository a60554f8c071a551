from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.edits.rewrite import rewrite
from agents.se_darwin.solution.evolved_program import EditDescriber, unified_diff


@pytest.mark.parametrize(
    "written",
    [
        "def f(x):\r\n    # all\r\n    y = 1\r\n    z = 2\r\n    return x - y\r\n",
        "def f(x):\n    y = 1\n\x0c\n    z = 'a\u2028b'\n    return x - y",
    ],
)
def test_the_diff_applies_with_any_line_ending(written: str, tmp_path: Path) -> None:
    space = EditSpace(written, "f")
    [edit] = [edit for edit in space.edits if (edit.kind, edit.new) == ("arithmetic", "Add")]
    repaired = rewrite(written, space.program([edit]))
    assert repaired == written.replace("x - y", "x + y")
    (tmp_path / "f.py").write_bytes(written.encode())
    diff = unified_diff(written, repaired, "f.py").encode()
    subprocess.run(["git", "apply", "-"], input=diff, cwd=tmp_path, check=True)
    assert (tmp_path / "f.py").read_bytes() == repaired.encode()


@pytest.mark.parametrize("program", [("patch", "-p1"), ("git", "apply", "-")])
@pytest.mark.parametrize(
    "path",
    [
        "my project/calc.py",
        'sp ace\'s "q"/calc.py',
        "back\\slash/calc.py",
        "tab\there/calc.py",
        "line\nend \x01\x7f/calc.py",
        "Grüße/calc.py",
        'Grüße "1"/calc.py',
    ],
)
def test_the_diff_applies_to_a_file_of_any_name(
    program: tuple[str, ...], path: str, tmp_path: Path
) -> None:
    file = tmp_path / path
    file.parent.mkdir()
    file.write_text("before\n")
    diff = unified_diff("before\n", "after\n", path).encode()
    subprocess.run(program, input=diff, cwd=tmp_path, check=True)
    assert file.read_text() == "after\n"


def test_the_diff_of_an_ordinary_name_shows_it_as_it_is() -> None:
    assert unified_diff("a\n", "b\n", "x/é.py").startswith("--- a/x/é.py\n+++ b/x/é.py\n@@")


def test_edits_are_described_by_the_lines_of_the_authors_text() -> None:
    code = "# head\n\ndef f(x, y):\n\n    return x - y\n"
    space = EditSpace(code, "f")
    [edit] = [edit for edit in space.edits if (edit.kind, edit.new) == ("arithmetic", "Add")]
    assert EditDescriber(code, space).describe([edit]) == ["line 5: arithmetic Sub -> Add"]
