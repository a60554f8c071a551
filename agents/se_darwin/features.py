"""What the world model sees of a program under repair and of a step that changes it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log1p

from agents.se_darwin.edits import EDIT_KINDS, Edit, EditSpace
from agents.se_darwin.evaluation import Evaluation, suspicion
from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    FieldValue,
    Text,
    TransitionSpec,
)

OPERATORS = ("revision", "recombination", "refinement")
OUTCOMES = ("worse", "same", "better", "fixed")
NUMBERS = (
    "suspicion",
    "suspicion_rank",
    "failing_coverage",
    "passing_coverage",
    "depth",
    "position",
    "alternatives",
    "kind_share",
    "old_reads",
    "new_reads",
    "new_is_unread",
    "old_repeated_in_statement",
    "new_repeated_in_statement",
    "new_is_assigned_there",
    "name_similarity",
    "changed",
)
SPEC = TransitionSpec(
    observation={
        "pass_rate": Box(),
        "size": Box(),
        "edits_so_far": Box(),
        "unfinished": Box(),
        "symptoms": Text(),
    },
    action={
        "operator": Discrete(values=OPERATORS),
        "kind": Discrete(values=(*EDIT_KINDS, "several")),
        "tokens": Text(buckets=4096),
        "numbers": Box(shape=(len(NUMBERS),)),
    },
    targets={"outcome": Discrete(values=OUTCOMES), "score_delta": Box()},
    success=("outcome", "fixed"),
    improvement="score_delta",
)
_MAX_SYMPTOMS = 3

Fields = Mapping[str, FieldValue]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A candidate before it is run: what is done to which parent.

    Attributes:
        operator: One of `OPERATORS`.
        changed: The edits added, or taken away by *refinement*.
        edits: All edits of the candidate.
    """

    operator: str
    changed: frozenset[Edit]
    edits: frozenset[Edit]


def observe(space: EditSpace, parent: Evaluation) -> Fields:
    """Observation fields of *parent*, a program made from *space*."""
    symptoms = Counter(parent.symptoms)
    unfinished = sum(output is None for output in parent.execution.outputs)
    return {
        "pass_rate": parent.score,
        "size": log1p(len(space.nodes)),
        "edits_so_far": float(len(parent.edits)),
        "unfinished": unfinished / len(parent.passed),
        "symptoms": [symptom for symptom, _ in symptoms.most_common()],
    }


class StepFeatures:
    """Action fields of steps from one parent.

    Edits are described in the tree of the program under repair; its lines are taken for the
    parent's too, which is exact but for exchanged statements.

    Args:
        space: The program under repair.
        parent: Evaluated with coverage.
    """

    def __init__(self, space: EditSpace, parent: Evaluation) -> None:
        self._space = space
        self._suspicion = suspicion(parent)
        self._symptoms = [name for name, _ in Counter(parent.symptoms).most_common(_MAX_SYMPTOMS)]
        self._alternatives = Counter(edit.node for edit in space.edits)
        self._kinds = Counter(edit.kind for edit in space.edits)
        self._names = _NameUse(space)
        self._lines = 1 + space.source.count("\n")
        levels = sorted({self.suspicion(edit.line) for edit in space.edits}, reverse=True)
        self._ranks = {level: rank / max(1, len(levels)) for rank, level in enumerate(levels)}

    def suspicion(self, line: int) -> float:
        """Ochiai suspiciousness of a line, in [0, 1]."""
        return self._suspicion.get(line, (0.0, 0.0, 0.0))[0]

    def describe(self, step: Step) -> Fields:
        """Action fields; several edits are merged: all their tokens, the mean of their numbers."""
        edits = sorted(step.changed, key=lambda edit: (edit.node, edit.kind, edit.new))
        tokens = list(dict.fromkeys(token for edit in edits for token in self._tokens(edit)))
        rows = [self._numbers(edit) for edit in edits]
        means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        return {
            "operator": step.operator,
            "kind": edits[0].kind if len(edits) == 1 else "several",
            "tokens": [step.operator, *tokens],
            "numbers": [*means, float(len(edits))],
        }

    def _tokens(self, edit: Edit) -> list[str]:
        role, *ancestors = edit.path
        parent = ancestors[0] if ancestors else ""
        change = f"{edit.kind} {edit.old}>{edit.new}"
        return [
            edit.kind,
            change,
            f"{edit.kind} from {edit.old}",
            f"{edit.kind} to {edit.new}",
            f"{edit.kind} in {parent}.{role}",
            f"{change} in {parent}.{role}",
            *(f"{edit.kind} under {name}" for name in ancestors[1:]),
            *(f"{edit.kind} | {symptom}" for symptom in self._symptoms),
            *(f"{change} | {symptom}" for symptom in self._symptoms),
        ]

    def _numbers(self, edit: Edit) -> list[float]:
        ochiai, failing, passing = self._suspicion.get(edit.line, (0.0, 0.0, 0.0))
        return [
            ochiai,
            self._ranks.get(ochiai, 1.0),
            failing,
            passing,
            float(len(edit.path)),
            edit.line / self._lines,
            log1p(self._alternatives[edit.node]),
            self._kinds[edit.kind] / len(self._space.edits),
            *self._names.of(edit),
        ]


class _NameUse:
    """How the names an edit takes away and brings in are used elsewhere."""

    def __init__(self, space: EditSpace) -> None:
        self._reads: Counter[str] = Counter()
        self._by_line: dict[int, Counter[str]] = {}
        self._assigned: dict[int, set[str]] = {}
        for node in space.nodes:
            if isinstance(node, ast.Name):
                if isinstance(node.ctx, ast.Load):
                    self._reads[node.id] += 1
                    self._by_line.setdefault(node.lineno, Counter())[node.id] += 1
                else:
                    self._assigned.setdefault(node.lineno, set()).add(node.id)

    def of(self, edit: Edit) -> Sequence[float]:
        """The seven name columns of `NUMBERS`; zeros for edits of other kinds."""
        if edit.kind != "variable":
            return (0.0,) * 7
        there = self._by_line.get(edit.line, Counter())
        return (
            log1p(self._reads[edit.old]),
            log1p(self._reads[edit.new]),
            float(self._reads[edit.new] == 0),
            float(there[edit.old] > 1),
            float(there[edit.new] > 0),
            float(edit.new in self._assigned.get(edit.line, set())),
            _similarity(edit.old, edit.new),
        )


def _similarity(first: str, second: str) -> float:
    """Share of letter pairs in common, in [0, 1]."""
    pairs = [Counter(name[i : i + 2] for i in range(len(name))) for name in (first, second)]
    return 2 * (pairs[0] & pairs[1]).total() / max(1, pairs[0].total() + pairs[1].total())
