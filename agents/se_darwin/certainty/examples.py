"""Examples in the function's docstring: what the program should do, beside the tests."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agents.se_darwin.edits.edit_space import definition_of
from agents.se_darwin.sandbox import PytestSuite, PytestSuiteError, Sandbox, TestSources
from agents.se_darwin.tasks import RepairTask
from agents.se_darwin.tasks.evaluation import Evaluation

if TYPE_CHECKING:
    from doctest import Example

MAX_EXAMPLES = 30
_UNUSABLE = (
    *("NameError", "SyntaxError", "ImportError", "ModuleNotFoundError"),
    *("OSError", "FileNotFoundError", "PermissionError", "BlockingIOError"),
)
"""Exceptions of what the module, or the sandbox, does not have."""

_MODULE = """\
import io
from contextlib import redirect_stdout
import {module} as __program__

globals().update(
    (name, value) for name, value in vars(__program__).items() if not name.startswith("__")
)

def __shows__(call, text, *values):
    stream = io.StringIO()
    with redirect_stdout(stream):
        result = call()
    shown = stream.getvalue() + ("" if result is None else repr(result))
    return shown.split() == text.split() or result in values

def __raises__(call, name):
    try:
        call()
    except Exception as error:
        return type(error).__name__ == name
    return False

def test_docstring():
{body}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """The examples of a function's docstring, as checks.

    Attributes:
        task: The repair task, with the examples in the place of its tests.
        calls: The examples, as the docstring has them.
    """

    task: RepairTask
    calls: Sequence[str]

    @classmethod
    def of(cls, task: RepairTask, sandbox: Sandbox) -> Examples | None:
        """Return the examples of the function of *task*; None if none can be run."""
        if task.suite is None:
            return None
        program = task.suite.program
        definition = definition_of(ast.parse(program.code), task.function)
        lines, calls = _test_lines(ast.get_docstring(definition) or "")
        if not calls:
            return None
        code = _MODULE.format(module=program.module, body="\n".join(lines))
        try:
            suite = PytestSuite.prepare(TestSources(code), program, task.function)
            limits = task.limits or sandbox.limits
            suite = sandbox.collect(suite, function=task.function, limits=limits)
        except PytestSuiteError:
            return None
        if len(suite.checks) != len(calls):
            return None
        suite = replace(suite, within=True)
        return cls(task=replace(task, suite=suite, tests=suite.cases(), given=None), calls=calls)

    def contradicted(self, program: Evaluation, sandbox: Sandbox) -> frozenset[int]:
        """Return the numbers of the examples that *program* contradicts.

        Examples that need a name which the program's module does not have, or a file, are left out.
        """
        [evaluation] = self.task.evaluate(sandbox, [(program.edits, program.source)])
        return frozenset(
            number
            for number, output in enumerate(evaluation.execution.outputs)
            if not evaluation.passed[number] and (output is None or output.text not in _UNUSABLE)
        )


def _test_lines(docstring: str) -> tuple[list[str], list[str]]:
    """Return the body of a test of the examples in *docstring*, and the examples that it checks."""
    from doctest import DocTestParser  # only here, because it imports the debugger

    try:
        examples = DocTestParser().get_examples(docstring)
    except ValueError:  # examples without proper layout
        return [], []
    lines: list[str] = []
    calls: list[str] = []
    for example in examples[:MAX_EXAMPLES]:
        try:
            statements = ast.parse(example.source).body
        except SyntaxError:
            return [], []
        if not example.want:
            lines += [
                ast.unparse(statement) for statement in statements if not _is_import(statement)
            ]
        elif len(statements) == 1 and isinstance(statements[0], ast.Expr) and _is_plain(example):
            lines.append(_assert(ast.unparse(statements[0]), example))
            calls.append(example.source.strip())
    return [f"    {line}" for text in lines for line in text.split("\n")], calls


def _is_plain(example: Example) -> bool:
    """Whether what it shows is the whole text, and the same in every run."""
    text = example.want if example.exc_msg is None else example.exc_msg
    return not example.options and "..." not in text and " at 0x" not in text


def _assert(call: str, example: Example) -> str:
    if example.exc_msg is not None:
        name = example.exc_msg.partition(":")[0].strip().rpartition(".")[2]
        return f"assert __raises__(lambda: {call}, {name!r})"
    try:
        value = f", {ast.literal_eval(example.want.strip())!r}"
    except (ValueError, SyntaxError):
        value = ""
    return f"assert __shows__(lambda: {call}, {example.want!r}{value})"


def _is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import | ast.ImportFrom)
