"""Fixes of single functions in the history of a repository."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from agents.se_darwin.edits.edit_space import definition_of
from benchmarks.se_darwin.foreign.clones import Clones
from benchmarks.se_darwin.foreign.cutting import (
    bound_names,
    cut,
    needed_statements,
    parsed,
    read_names,
    with_function_of,
)

_SAYS_FIX = re.compile(
    r"\b(fix\w*|bug\w*|hotfix\w*|correct\w*|incorrect\w*|wrong\w*|regression|crash\w*|handl\w+|"
    r"edge.case\w*|off.by.one)\b",
    re.IGNORECASE,
)
_MOST_FILES = 8
_MOST_LINES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """A commit that changed a function.

    Attributes:
        repository: URL of the repository.
        commit: The commit.
        path: Path of the module.
        function: Name of the function, or ``Class.method``.
        changed_lines: Lines of the function in normal form that differ, of the longer side.
        right: Text of the module after the commit.
        wrong: The same with the function as it was before.
    """

    repository: str
    commit: str
    path: str
    function: str
    changed_lines: int
    right: str
    wrong: str

    def programs(self, names: set[str]) -> tuple[str, str]:
        """Return the wrong and the right program: what *names* and the function need.

        Raises:
            NotCutError: They need a module outside the standard library.
        """
        roots = names | {self.function.partition(".")[0]}
        trees = parsed(self.wrong), parsed(self.right)
        for tree in trees:
            for index in needed_statements(tree, roots):
                roots |= read_names(tree.body[index])
        return cut(self.wrong, roots), cut(self.right, roots)


def read_fix(clones: Clones, repository: str, commit: str, path: str, function: str) -> Fix:
    """Read the change of *function* by *commit*."""
    right = clones.text(repository, commit, path)
    before = clones.text(repository, f"{commit}^", path)
    return Fix(
        repository=repository,
        commit=commit,
        path=path,
        function=function,
        changed_lines=changed_lines(before, right, function),
        right=right,
        wrong=with_function_of(right, before, function),
    )


def fixes(
    clones: Clones,
    repository: str,
    folder: str,
    *,
    says_fix: bool,
    rng: Random,
    contains: str = "",
) -> Iterator[Fix]:
    """Yield the fixes of single functions in modules below *folder*, in random order.

    A fix is a change of a function with the same parameters by a commit that changes few modules;
    at most eight lines of the function in normal form (without docstring and annotations)
    change, and what it used before still exists. Whether a test notices is for the caller to see.

    Args:
        clones: Clones to read.
        repository: URL of the repository.
        folder: Prefix of the modules' paths.
        says_fix: Whether the commit's message must tell of a fix.
        rng: Random generator of the order.
        contains: What the module must contain.
    """
    log = clones.git(
        repository,
        *("log", "--no-merges", "--diff-filter=M", "--name-only", "--format=%x01%H%x02%B%x02"),
        *("--", f"{folder}*.py" if folder else "*.py"),
    )
    changes: list[tuple[str, str]] = []
    for part in log.decode(errors="replace").split("\x01")[1:]:
        commit, message, files = part.split("\x02")
        paths = [path for path in files.split("\n") if path.endswith(".py")]
        if len(paths) <= _MOST_FILES and (_SAYS_FIX.search(message) or not says_fix):
            changes += [(commit, path) for path in paths if "test" not in path.lower()]
    rng.shuffle(changes)
    for commit, path in changes:
        try:
            if contains in clones.text(repository, commit, path):
                yield from _fixes_of(clones, repository, commit, path)
        except ValueError:  # not UTF-8
            continue


def _fixes_of(clones: Clones, repository: str, commit: str, path: str) -> Iterator[Fix]:
    try:
        right = clones.text(repository, commit, path)
        before = clones.text(repository, f"{commit}^", path)
        if _without_comments(right) == _without_comments(before):
            return
        new, old = _functions(right), _functions(before)
    except (ValueError, SyntaxError):  # renamed, not UTF-8, or Python 2
        return
    vanished = bound_names(parsed(before)) - bound_names(parsed(right))
    for name in sorted(new.keys() & old.keys()):
        if _lines(right, new[name]) == _lines(before, old[name]):
            continue
        if _normal(new[name]) == _normal(old[name]) or _names(new[name]) != _names(old[name]):
            continue
        changed = changed_lines(before, right, name)
        if changed > _MOST_LINES or vanished & read_names(old[name]):
            continue
        try:
            wrong = with_function_of(right, before, name)
            parsed(wrong)
        except (ValueError, SyntaxError):
            continue
        yield Fix(
            repository=repository,
            commit=commit,
            path=path,
            function=name,
            changed_lines=changed,
            right=right,
            wrong=wrong,
        )


def _lines(source: str, node: ast.FunctionDef) -> list[str]:
    return source.splitlines()[node.lineno - 1 : node.end_lineno]


def _without_comments(source: str) -> str:
    return "".join(line.partition("#")[0].strip() for line in source.splitlines())


def changed_lines(before: str, after: str, function: str) -> int:
    """Lines in normal form by which *function* differs, of the longer side."""
    old, new = (
        _normal(definition_of(parsed(text), function)).splitlines() for text in (before, after)
    )
    codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in codes if tag != "equal")


def _functions(source: str) -> dict[str, ast.FunctionDef]:
    """Functions and methods by name; of several definitions of a name, none."""
    found: dict[str, list[ast.FunctionDef]] = {}
    for node in parsed(source).body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef):
                    found.setdefault(f"{node.name}.{each.name}", []).append(each)
    return {name: nodes[0] for name, nodes in found.items() if len(nodes) == 1}


def _names(node: ast.FunctionDef) -> list[str]:
    return [each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)]


def _normal(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Text of the function without docstring and annotations."""
    tree = ast.parse(ast.unparse(node))
    for each in ast.walk(tree):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            each.returns = None
            if ast.get_docstring(each) is not None:
                each.body = each.body[1:] or [ast.Pass()]
        elif isinstance(each, ast.arg):
            each.annotation = None
    return ast.unparse(tree)
