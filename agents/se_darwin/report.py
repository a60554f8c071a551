"""What `evolve_solution` tells of the program it found."""

from __future__ import annotations

import ast
import difflib
import io
from collections.abc import Iterable, Sequence
from typing import TypedDict

from agents.se_darwin.edits import Edit, EditSpace
from agents.se_darwin.evaluation import Evaluation
from agents.se_darwin.evolution import Outcome


class EvolvedProgram(TypedDict):
    """The best program and how it came about; names as in the original system's trajectories.

    ``code_after`` keeps the author's comments and layout, ``diff`` is what a patch program takes;
    ``hidden_pass_rate`` is the share of tests passed that the search never saw, 1 where there
    are none; ``lineage`` names, oldest first, each step from the given program to the one found,
    by the lines of the given one.
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
    """Changes from *before* to *after* of the file *path*, as ``patch -p1`` takes them."""
    lines = difflib.unified_diff(_lines(before), _lines(after), f"a/{path}", f"b/{path}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _lines(text: str) -> list[str]:
    """Lines as a patch program sees them: `str.splitlines` would end them at a form feed too."""
    return list(io.StringIO(text, newline="\n"))


class Narration:
    """Names edits by the lines of the program as its author wrote it.

    Args:
        code: That program.
        space: The same in normal form, in which edits are addressed.
    """

    def __init__(self, code: str, space: EditSpace) -> None:
        [definition] = [
            node
            for node in ast.parse(code).body
            if isinstance(node, ast.FunctionDef) and node.name == space.function
        ][-1:]
        line = definition.lineno
        # The walk's order is the same as in normal form.
        self._lines = [getattr(node, "lineno", line) for node in ast.walk(definition)]

    def name(self, edits: Iterable[Edit]) -> list[str]:
        """Each of *edits* in words, in order of lines."""
        placed = sorted((self._lines[edit.node], edit.kind, edit.old, edit.new) for edit in edits)
        return [f"line {line}: {kind} {old} -> {new}" for line, kind, old, new in placed]

    def lineage(self, found: Evaluation, kept: Evaluation, history: Sequence[Outcome]) -> list[str]:
        """The steps that led to *found*, oldest first, and what *kept* does without."""
        steps: list[str] = []
        made_by = {outcome.child.source: outcome for outcome in history}
        source = found.source
        while (outcome := made_by.pop(source, None)) is not None:
            changed = "; ".join(self.name(outcome.step.changed))
            score = f"{outcome.parent.score:.2f} -> {outcome.child.score:.2f}"
            steps.append(f"{outcome.step.operator}: {changed} ({score})")
            source = outcome.parent.source
        steps.reverse()
        if needless := found.edits - kept.edits:
            steps.append(f"refinement: without {'; '.join(self.name(needless))}")
        return steps
