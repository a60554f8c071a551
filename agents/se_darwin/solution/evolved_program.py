"""The program that `evolve_solution` returns: source, diff, and the edits in words."""

from __future__ import annotations

import ast
import difflib
import io
from collections.abc import Iterable, Sequence
from typing import TypedDict

from agents.se_darwin.edits import Edit, EditSpace
from agents.se_darwin.edits.edit_space import definition_of
from agents.se_darwin.search.evolution import StepResult
from agents.se_darwin.tasks.evaluation import Evaluation
from infrastructure.agent_contract.proposer import EDITS

_ESCAPES = {code: f"\\{code:03o}" for code in (*range(32), 127)}
_ESCAPES |= {ord('"'): '\\"', ord("\\"): r"\\"}


class EvolvedProgram(TypedDict):
    """The best program and its lineage; the keys are those of the original system's trajectories.

    ``code_after`` keeps the author's comments and layout; ``patch`` accepts ``diff``.
    ``hidden_pass_rate`` is the share of hidden tests passed, 1 without hidden tests. ``lineage``
    describes each step from the given program to the one found, oldest first, with the line
    numbers of the given program.
    """

    agent_name: str
    problem_description: str
    code_after: str
    diff: str
    edits: list[str]
    lineage: list[str]
    success_score: float
    test_results: list[bool]
    hidden_pass_rate: float


def unified_diff(before: str, after: str, path: str) -> str:
    """Return the changes of the file *path* as a unified diff.

    ``patch -p1`` and ``git apply`` accept it, also if *path* contains spaces or quotes.
    """
    names = _in_header(f"a/{path}"), _in_header(f"b/{path}")
    lines = difflib.unified_diff(_lines(before), _lines(after), *names)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _in_header(name: str) -> str:
    """*name* as git writes it after ``---``.

    Quoted if it contains what the programs would not read otherwise; before a tab if it contains a
    space, at which ``patch`` would end it.
    """
    written = name.translate(_ESCAPES)
    quoted = name if written == name else f'"{written}"'
    return f"{quoted}\t" if " " in name else quoted


def _lines(text: str) -> list[str]:
    """Split *text* as ``patch`` does; `str.splitlines` would also split at form feeds."""
    return list(io.StringIO(text, newline="\n"))


class EditDescriber:
    """Describes edits with the line numbers of the program as its author wrote it.

    Args:
        code: Program as its author wrote it.
        space: The same program in normal form, in which edits are addressed.
    """

    def __init__(self, code: str, space: EditSpace) -> None:
        definition = definition_of(ast.parse(code), space.function)
        line = definition.lineno
        # `ast.walk` visits the nodes in the same order as in normal form.
        self._lines = [getattr(node, "lineno", line) for node in ast.walk(definition)]

    def describe(self, edits: Iterable[Edit]) -> list[str]:
        """Return a description of each edit, in order of lines."""
        placed = sorted((self._lines[edit.node], edit.kind, edit.old, edit.new) for edit in edits)
        return [f"line {line}: {kind} {old} -> {new}" for line, kind, old, new in placed]

    def lineage(
        self, program: Evaluation, kept: Evaluation, history: Sequence[StepResult]
    ) -> list[str]:
        """Return the steps to *program*, oldest first, and the edits that *kept* dropped."""
        steps: list[str] = []
        outcome_by_source = {outcome.child.source: outcome for outcome in history}
        source = program.source
        while (outcome := outcome_by_source.pop(source, None)) is not None:
            changed = "; ".join(self.describe(outcome.step.changed))
            score = f"{outcome.parent.score:.2f} -> {outcome.child.score:.2f}"
            is_own = outcome.proposer == EDITS or outcome.parent.edits
            by = outcome.step.operator if is_own else f"proposed by {outcome.proposer}"
            steps.append(f"{by}: {changed} ({score})")
            source = outcome.parent.source
        steps.reverse()
        if needless := program.edits - kept.edits:
            steps.append(f"refinement: without {'; '.join(self.describe(needless))}")
        return steps
