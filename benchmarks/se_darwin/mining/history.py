"""Functions before and after a commit whose subject tells of a repair."""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SUBJECT = re.compile(r"\b(fix|fixes|fixed|fixing|bug|bugs|bugfix)\b", re.IGNORECASE)
_NO_PROGRAM = re.compile(
    r"(^|/)((tests?|docs?|examples?|conftest\.py|setup\.py)(/|$)|test_)|_test\.py"
)
_MAX_CHANGED_LINES = 24
_MAX_FUNCTION_LINES = 35
_USUAL_METHODS = (
    *("append", "add", "items", "keys", "values", "lower", "upper", "strip", "copy", "get"),
    *("pop", "extend", "split", "join", "sort", "insert"),
)
_USUAL = {*(f".{name}" for name in _USUAL_METHODS), "=reverse", "=key", "''", "' '"}


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionChange:
    """A function that a commit changed.

    Attributes:
        commit: Hash of the commit.
        path: File.
        function: Name of the function, without that of its class.
        before: Definition before the commit, in normal form, without decorators and docstring.
        after: Definition after it, in the same form.
    """

    commit: str
    path: str
    function: str
    before: str
    after: str

    @property
    def is_in_scope(self) -> bool:
        """Whether the new version only uses names and strings of the old one, or builtin ones."""
        added = _vocabulary(self.after) - _vocabulary(self.before)
        return not added - set(dir(builtins)) - _USUAL


def repairs(repository: Path) -> Iterator[FunctionChange]:
    """Yield the functions that repairs in the history of *repository* changed, newest first.

    A repair is a commit without merge whose subject has a word such as "fix" or "bug". Files with
    more than 24 changed lines, tests, and functions of more than 35 lines are left out.

    Args:
        repository: Git directory or work tree.

    Raises:
        subprocess.CalledProcessError: *repository* is not a git repository.
    """
    seen: set[tuple[str, str]] = set()
    for commit, path, old, new in _changed_files(repository):
        texts = (_git(repository, "cat-file", "blob", blob) for blob in (old, new))
        before, after = map(_functions, texts)
        for name in before:
            pair = before[name], after.get(name, before[name])
            if pair[0] != pair[1] and pair not in seen:
                seen.add(pair)
                yield FunctionChange(
                    commit=commit,
                    path=path,
                    function=name.rpartition(".")[2],
                    before=pair[0],
                    after=pair[1],
                )


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(repository), *arguments],  # noqa: S607
        check=True,
        capture_output=True,
        text=True,
        errors="replace",
    )
    return done.stdout


def _changed_files(repository: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield commit, path, and the blobs before and after."""
    arguments = ("--no-merges", "--no-renames", "--diff-filter=M", "--raw", "--numstat")
    log = _git(repository, "log", *arguments, "--no-abbrev", "--format=commit %H %s", "--", "*.py")
    commit, blobs = "", dict[str, tuple[str, str]]()
    for line in log.splitlines():
        if line.startswith("commit "):
            _, found, *subject = line.split(" ", 2)
            commit, blobs = (found if _SUBJECT.search(" ".join(subject)) else ""), {}
        elif commit and line.startswith(":"):
            fields, path = line.split("\t", 1)
            _, _, old, new, _ = fields.split(" ")
            blobs[path] = (old, new)
        elif commit and line.count("\t") == 2:
            added, removed, path = line.split("\t")
            is_small = added != "-" and int(added) + int(removed) <= _MAX_CHANGED_LINES
            if is_small and path in blobs and not _NO_PROGRAM.search(path):
                yield commit, path, *blobs[path]


def _functions(text: str) -> dict[str, str]:
    """Return the functions and methods of a module, in normal form; none if it does not parse."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    found: dict[str, str] = {}
    for node in tree.body:
        owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for each in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(each, ast.FunctionDef):
                each.decorator_list = []
                if ast.get_docstring(each, clean=False) is not None:
                    each.body = each.body[1:] or [ast.Pass()]
                source = ast.unparse(each)
                if source.count("\n") < _MAX_FUNCTION_LINES:
                    found[owner + each.name] = source
    return found


def _vocabulary(source: str) -> set[str]:
    """Return the names, attributes, keywords, strings and imports of a function."""
    words: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            words.add(node.id)
        elif isinstance(node, ast.Attribute):
            words.add(f".{node.attr}")
        elif isinstance(node, ast.arg):
            words.add(node.arg)
        elif isinstance(node, ast.keyword):
            words.add(f"={node.arg}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            words.add(repr(node.value))
        elif isinstance(node, ast.Import | ast.ImportFrom | ast.ExceptHandler):
            words.add(ast.unparse(node).split("\n")[0])
    return words
