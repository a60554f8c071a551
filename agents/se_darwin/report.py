"""What `evolve_solution` tells of the program it found."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TypedDict

from agents.se_darwin.evaluation import Evaluation
from agents.se_darwin.evolution import Outcome


class EvolvedProgram(TypedDict):
    """The best program and how it came about; names as in the original system's trajectories.

    ``hidden_pass_rate`` is the share of tests passed that the search never saw, 1 where there
    are none; ``lineage`` names, oldest first, each step from the given program to the one found,
    before needless edits were dropped.
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


def unified_diff(before: str, after: str) -> str:
    """Lines changed from *before* to *after*, with three lines around them."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "given", "evolved")
    return "\n".join(line.rstrip("\n") for line in lines)


def lineage(found: Evaluation, history: Sequence[Outcome]) -> list[str]:
    """The steps that led to *found*, oldest first."""
    steps: list[str] = []
    made_by = {outcome.child.source: outcome for outcome in history}
    source = found.source
    while (outcome := made_by.pop(source, None)) is not None:
        changed = "; ".join(sorted(map(str, outcome.step.changed)))
        score = f"{outcome.parent.score:.2f} -> {outcome.child.score:.2f}"
        steps.append(f"{outcome.step.operator}: {changed} ({score})")
        source = outcome.parent.source
    return steps[::-1]
