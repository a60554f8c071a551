"""What a program fails, as a proposer reads it: the text of the check, and its values."""

from __future__ import annotations

import ast
import re

from agents.se_darwin.edits.nodes import FunctionNode
from agents.se_darwin.tasks import RepairTask
from agents.se_darwin.tasks.evaluation import Evaluation, expected_text
from infrastructure.agent_contract.proposer import FailingCheck

_LINE = re.compile(r", line (\d+)\b")
_TEST = re.compile(r"(?:\w+\.)*(\w+)")


class CheckTexts:
    """Texts of the checks of a test module.

    Args:
        tests: Source of the module; empty if the checks are calls.
    """

    def __init__(self, tests: str) -> None:
        nodes = list(ast.walk(ast.parse(tests)))
        self._lines = {
            node.lineno: ast.unparse(node)
            for node in reversed(nodes)
            if isinstance(node, ast.stmt) and not hasattr(node, "body")
        }
        self._tests = {
            node.name: "; ".join(map(ast.unparse, node.body))
            for node in nodes
            if isinstance(node, FunctionNode)
        }

    def describe(self, name: str) -> str:
        """Return the name of a check with the text of its assert, or of its test."""
        line, test = _LINE.search(name), _TEST.match(name)
        text = self._lines.get(int(line[1]), "") if line else ""
        if not text and test:
            text = self._tests.get(test[1], "")
        return f"{name}: {' '.join(text.split())}" if text else name


def failing_checks(
    task: RepairTask, program: Evaluation, texts: CheckTexts
) -> tuple[FailingCheck, ...]:
    """Return the checks that *program* fails, with the values as far as they are known."""
    checks = []
    rows = zip(task.check_names, task.tests, program.execution.outputs, strict=True)
    for passed, (name, test, output) in zip(program.passed, rows, strict=True):
        if passed:
            continue
        is_known = output is not None and output.kind == test.kind == "value"
        expected = expected_text(test, output) if is_known and output is not None else ""
        got = "" if output is None else output.text
        checks.append(FailingCheck(name=texts.describe(name), expected=expected, got=got))
    return tuple(checks)
