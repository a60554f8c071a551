"""Tests made of the examples in a docstring."""

from __future__ import annotations

import ast
import doctest
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from benchmarks.se_darwin.foreign.bug import MODULE

_PLAIN = (ast.Call, ast.Attribute, ast.Subscript, ast.Name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """Attributes:
    code: A statement, or the expression of a check.
    expected: Text of the literal that the expression must equal; empty otherwise.
    raises: Name of the exception that it must raise; empty otherwise.
    """

    code: str
    expected: str = ""
    raises: str = ""

    @property
    def is_check(self) -> bool:
        """Whether it has a result to check."""
        return bool(self.expected or self.raises)


def read_examples(docstring: str, name: str) -> list[Example]:
    """Return the statements of the examples in *docstring*, and its checks of *name*.

    Examples whose result is not a literal, or that doctest compares loosely, are left out.
    """
    try:
        found = doctest.DocTestParser().get_examples(docstring)
    except ValueError:
        return []
    examples = []
    for each in found:
        example = _example(each)
        if example is not None and not (example.is_check and name not in example.code):
            examples.append(example)
    return examples


def _example(given: doctest.Example) -> Example | None:
    code, wanted = given.source.strip(), given.want.strip()
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return None
    if given.options or len(tree.body) != 1:
        return None
    is_expression = isinstance(tree.body[0], ast.Expr)
    if given.exc_msg is not None:
        raised = given.exc_msg.partition(":")[0].strip().rpartition(".")[2]
        is_usable = is_expression and raised.isidentifier()
        return Example(code=code, raises=raised) if is_usable else None
    if wanted and not (is_expression and _is_literal(wanted)):
        return None
    if wanted:
        return Example(code=ast.unparse(tree), expected=" ".join(wanted.split("\n")))
    return Example(code=code)


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def doctest_module(
    name: str,
    examples: Sequence[Example],
    chosen: Collection[int],
    imported: Collection[str],
    *,
    separate: bool = False,
) -> str:
    """Return a test module of the *examples* at the positions *chosen*, after all statements.

    Args:
        name: Name of the function, for those of the tests.
        examples: All examples.
        chosen: Positions of checks.
        imported: Names to import from the program.
        separate: Whether each check is a test of its own, named ``...__position``.
    """
    plain = name.replace(".", "_").strip("_")
    tests: list[tuple[str, list[str]]] = []
    together: list[str] = []
    for index, example in enumerate(examples):
        if index in chosen and (separate or example.raises):
            before = [each.code for each in examples[:index] if not each.is_check]
            tests.append((f"_{index}", [*before, *_check(example)]))
        elif index in chosen or not example.is_check:
            together += _check(example)
    if any(line.startswith("assert") for line in together):
        tests.insert(0, ("", together))
    lines = ["import pytest"] if any(examples[index].raises for index in chosen) else []
    lines.append(f"from {MODULE} import {', '.join(sorted(imported))}")
    for suffix, test in tests:
        lines += ["", "", f"def test_{plain}{'_' if separate else ''}{suffix}():"]
        lines += ["    " + line for statement in test for line in statement.split("\n")]
    return "\n".join(lines) + "\n"


def _check(example: Example) -> list[str]:
    if example.raises:
        return [f"with pytest.raises({example.raises}):", f"    {example.code}"]
    if not example.expected:
        return [example.code]
    if isinstance(ast.parse(example.code, mode="eval").body, _PLAIN):
        return [f"assert {example.code} == {example.expected}"]
    if example.expected == "True":
        return [f"assert {example.code}"]
    return [f"assert ({example.code}) == {example.expected}"]
