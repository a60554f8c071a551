from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.se_darwin.mining.history import FunctionChange, repairs

BEFORE = '''
@cached
def mean(items):
    """Return the mean."""
    return sum(items) / 2


def other(x):
    return x
'''
AFTER = BEFORE.replace("2", "len(items)")


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    for text, message in ((BEFORE, "Add mean"), (AFTER, "Fix mean"), (BEFORE, "Go back")):
        (tmp_path / "mean.py").write_text(text)
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-qm", message)
    return tmp_path


def test_a_repair_is_a_changed_function_of_a_commit_that_says_so(repository: Path) -> None:
    [change] = repairs(repository)
    assert (change.path, change.function) == ("mean.py", "mean")
    assert change.before == "def mean(items):\n    return sum(items) / 2"
    assert change.after == "def mean(items):\n    return sum(items) / len(items)"


@pytest.mark.parametrize(
    ("after", "in_scope"),
    [("x + len(x)", True), ("x + 7", True), ("helper(x)", False), ("x.size", False)],
)
def test_what_is_in_scope_uses_the_names_of_the_function(after: str, in_scope: bool) -> None:
    change = FunctionChange(
        commit="",
        path="",
        function="f",
        before="def f(x):\n    return x",
        after=f"def f(x):\n    return {after}",
    )
    assert change.is_in_scope is in_scope
