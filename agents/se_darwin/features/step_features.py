"""Features of a program under repair and of a step that changes it: the world model's inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log1p

from agents.se_darwin.edits import EDIT_KINDS, Edit, EditSpace
from agents.se_darwin.features.edit_context import CONTEXT_NUMBERS, EditContext
from agents.se_darwin.features.result_texts import ResultTexts
from agents.se_darwin.features.statements import FARTHEST, Statements
from agents.se_darwin.features.variables import Variables
from agents.se_darwin.tasks.evaluation import Evaluation, line_suspiciousness
from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    FieldValue,
    Text,
    TransitionSpec,
)

OPERATORS = ("revision", "recombination", "refinement")
OUTCOMES = ("worse", "same", "better", "fixed")
# "The line" and "the node" are those of the edit; shares and ranks are in [0, 1].
NUMBERS = (
    "suspiciousness",  # Ochiai suspiciousness of the line
    "suspiciousness_of_max",  # divided by that of the most suspicious line
    "suspiciousness_rank",  # share of the levels of suspiciousness above it; 1 if not known
    "more_suspicious",  # share of the edits that are on more suspicious lines; 1 if not known
    "failing_coverage",  # share of the failing tests that run the line
    "passing_coverage",  # share of the passing tests
    "failing_only",  # whether failing tests run the line and passing ones do not
    "raising",  # Ochiai suspiciousness of the exceptions that the line raises
    "failing_raise",  # share of the failing tests in which it raises one
    "new_is_wanted",  # this and the next three: see `ResultTexts.describe`
    "new_is_got",
    "old_is_wanted",
    "old_is_got",
    "depth",  # of the node in the syntax tree
    "position",  # lines from the first line of the function, divided by its number of lines
    "loops",  # number of loops around the node
    "distance",  # of its statement from the result, divided by `FARTHEST`
    "alternatives",  # log of the node's number of edits, less that of the mean node
    "alternatives_of_line",  # the same of the line
    "kind_share",  # share of the edits that are of the same kind
    "same_type",  # 1 if old and new token have one type, -1 if two, 0 if not known
    *CONTEXT_NUMBERS,
    "changed",  # number of edits that the step adds or removes
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
        "tokens": Text(buckets=16384),
        "numbers": Box(shape=(len(NUMBERS),)),
    },
    targets={"outcome": Discrete(values=OUTCOMES), "score_delta": Box()},
    success=("outcome", "fixed"),
    improvement="score_delta",
)
_MAX_SYMPTOMS = 3  # the most frequent ones of the parent that go into tokens

Fields = Mapping[str, FieldValue]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A candidate before it is run.

    Attributes:
        operator: One of `OPERATORS`.
        changed: Edits that are added to the parent, or removed by *refinement*.
        edits: All edits of the candidate.
    """

    operator: str
    changed: frozenset[Edit]
    edits: frozenset[Edit]


def observe(space: EditSpace, parent: Evaluation) -> Fields:
    """Return the observation fields of *parent*, a program made from *space*."""
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
    """Computes the action fields of steps from one parent.

    Edits are described in the tree of the program under repair. Its line numbers stand for the
    parent's, which is exact unless statements were exchanged.

    Args:
        space: The program under repair and its edits.
        parent: The parent, evaluated with coverage.
    """

    def __init__(self, space: EditSpace, parent: Evaluation) -> None:
        self._space = space
        self._suspiciousness = line_suspiciousness(parent)
        self._symptoms = [name for name, _ in Counter(parent.symptoms).most_common(_MAX_SYMPTOMS)]
        self._results = ResultTexts(parent)
        self._alternatives = Counter(edit.node for edit in space.edits)
        self._kinds = Counter(edit.kind for edit in space.edits)
        self._context = EditContext(space)
        self._variables = Variables(space.nodes)
        self._statements = Statements(space.definition, self._variables.roles)
        self._first_line = space.definition.lineno
        last_line = space.definition.end_lineno or self._first_line
        self._lines = 1 + last_line - self._first_line
        self._mean_alternatives = len(space.edits) / max(1, len(self._alternatives))
        self._line_edits = Counter(edit.line for edit in space.edits)
        self._mean_line_edits = len(space.edits) / max(1, len(self._line_edits))
        self._ranks = _ranks(
            {line: values[0] for line, values in self._suspiciousness.items()}, self._line_edits
        )
        self._max_level = max(self._ranks, default=0.0)

    def describe(self, step: Step) -> Fields:
        """Return the action fields; several edits give all tokens and the mean of their numbers."""
        if len(step.changed) == 1:
            [edit] = step.changed
            kind, numbers = edit.kind, self._numbers(edit)
            tokens = [step.operator, *self._tokens(edit)]
        else:
            edits = sorted(step.changed, key=lambda edit: (edit.node, edit.kind, edit.new))
            kind = "several"
            columns = zip(*map(self._numbers, edits), strict=True)
            numbers = [sum(column) / len(edits) for column in columns]
            edit_tokens = (token for edit in edits for token in self._tokens(edit))
            tokens = [step.operator, *dict.fromkeys(edit_tokens)]
        return {
            "operator": step.operator,
            "kind": kind,
            "tokens": tokens,
            "numbers": [*numbers, float(len(step.changed))],
        }

    def _tokens(self, edit: Edit) -> list[str]:
        role, *ancestors = edit.path
        parent = ancestors[0] if ancestors else ""
        kind, node = edit.kind, self._space.nodes[edit.node]
        old, new = self._variables.describe(edit.old), self._variables.describe(edit.new)
        change = f"{kind} {old}>{new}"
        place = self._statements.places.get(id(node), "")
        return [
            kind,
            change,
            f"{kind} from {old}",
            f"{kind} to {new}",
            f"{kind} in {parent}.{role}",
            f"{change} in {parent}.{role}",
            f"{kind} at {place}",
            f"{change} at {place}",
            f"{kind} to {new} on {self._variables.type_of(node)}",
            *(f"{kind} under {name}" for name in ancestors[1:]),
            *(f"{kind} | {symptom}" for symptom in self._symptoms),
            *(f"{change} | {symptom}" for symptom in self._symptoms),
            *(f"{kind} at {place} | {symptom}" for symptom in self._symptoms),
            *(f"at {place} | {symptom}" for symptom in self._symptoms),
            *(f"to {new} | {symptom}" for symptom in self._symptoms),
        ]

    def _numbers(self, edit: Edit) -> list[float]:
        ochiai, failing, passing = self._suspiciousness.get(edit.line, (0.0, 0.0, 0.0))
        node = self._space.nodes[edit.node]
        names = self._variables.names_in(edit.new)
        types = [self._variables.types.get(name, "?") for name in (edit.old, *names[:1])]
        return [
            ochiai,
            ochiai / self._max_level if self._max_level else 0.0,
            *self._ranks.get(ochiai, (1.0, 1.0)),
            failing,
            passing,
            float(failing > 0.0 == passing),
            *self._suspiciousness.get(-edit.line, (0.0, 0.0, 0.0))[:2],
            *self._results.describe(edit),
            float(len(edit.path)),
            (edit.line - self._first_line) / self._lines,
            float(self._statements.loops.get(id(node), 0)),
            self._statements.distance(node) / FARTHEST,
            log1p(self._alternatives[edit.node]) - log1p(self._mean_alternatives),
            log1p(self._line_edits[edit.line]) - log1p(self._mean_line_edits),
            self._kinds[edit.kind] / len(self._space.edits),
            _agreement(types),
            *self._context.describe(edit, names),
        ]


def _agreement(types: Sequence[str]) -> float:
    """Return 1 if two types are known and equal, -1 if they differ, else 0."""
    if len(types) < 2 or "?" in types:
        return 0.0
    return 1.0 if types[0] == types[1] else -1.0


def _ranks(
    suspiciousness: Mapping[int, float], line_edits: Mapping[int, int]
) -> dict[float, tuple[float, float]]:
    """Return, by level of suspiciousness, the share of levels and the share of edits above it.

    Args:
        suspiciousness: Of each line that a test runs; 0 for others.
        line_edits: Number of edits on each line that has one.
    """
    levels: Counter[float] = Counter()
    for line, count in line_edits.items():
        levels[suspiciousness.get(line, 0.0)] += count
    ranks, above = {}, 0
    for rank, (level, count) in enumerate(sorted(levels.items(), reverse=True)):
        ranks[level] = rank / len(levels), above / sum(line_edits.values())
        above += count
    return ranks
