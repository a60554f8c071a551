"""A candidate judged: which tests it passes, how it fails the others, where it went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agents.se_darwin.edits import Edit
from agents.se_darwin.jail.check import HELD
from agents.se_darwin.sandbox import Execution, Output, TestCase

_TYPES = {"[": "list", "(": "tuple", "{": "dict", "'": "text", '"': "text", "b": "bytes"}
_TYPES |= {"T": "bool", "F": "bool", "N": "None", "s": "set", "i": "iterator", "-": "number"}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Evaluation:
    """One executed program.

    Attributes:
        edits: What was changed in the program under repair.
        source: The program, in normal form.
        passed: Per test, whether it passed.
        execution: What it did.
        symptoms: Per failed test, how it failed, in a few words.
    """

    edits: frozenset[Edit]
    source: str
    passed: tuple[bool, ...]
    execution: Execution
    symptoms: tuple[str, ...]

    @classmethod
    def judge(
        cls,
        edits: frozenset[Edit],
        source: str,
        execution: Execution,
        tests: Sequence[TestCase],
    ) -> Evaluation:
        """Compare what the program did with what was expected of it."""
        pairs = list(zip(tests, execution.outputs, strict=True))
        return cls(
            edits=edits,
            source=source,
            passed=tuple(test.passes(output) for test, output in pairs),
            execution=execution,
            symptoms=tuple(_symptom(test, out) for test, out in pairs if not test.passes(out)),
        )

    @property
    def score(self) -> float:
        """Share of tests passed, in [0, 1]."""
        return sum(self.passed) / len(self.passed)

    @property
    def fixed(self) -> bool:
        """Whether every test passes."""
        return all(self.passed)


def outcome_of(parent: Evaluation, child: Evaluation) -> str:
    """One of `agents.se_darwin.features.OUTCOMES`."""
    if child.fixed:
        return "fixed"
    change = child.score - parent.score
    return "better" if change > 0 else "worse" if change < 0 else "same"


def _symptom(test: TestCase, output: Output | None) -> str:
    if output is None:
        return "unfinished"
    if output.kind == "strange":
        return "strange"
    if output.kind != test.kind or output.kind == "raise":
        got = output.text if output.kind == "raise" else "value"
        return f"{got} for {test.expected if test.kind == 'raise' else 'value'}"
    expected = output.arguments if test.expected == HELD else test.expected
    if output.text == expected:
        return "arguments differ"
    wanted, got = _type_of(expected), _type_of(output.text)
    if wanted != got:
        return f"{got} for {wanted}"
    return f"{wanted} {_difference(wanted, expected, output.text)}"


def _type_of(text: str) -> str:
    return _TYPES.get(text[:1], "number" if text[:1].isdigit() else "other")


def _difference(kind: str, wanted: str, got: str) -> str:
    if kind == "number":
        try:
            change = float(got) - float(wanted)
        except ValueError:  # a complex number
            return "differs"
        return "off by one" if abs(change) == 1 else "greater" if change > 0 else "less"
    if len(got) == len(wanted):
        return "differs"
    relation = "longer" if len(got) > len(wanted) else "shorter"
    shorter, longer = sorted((wanted[:-1], got[:-1]), key=len)
    return f"{relation} start" if longer.startswith(shorter) else relation


def suspicion(evaluation: Evaluation) -> dict[int, tuple[float, float, float]]:
    """Ochiai suspiciousness of each line run, with the shares of failing and passing tests.

    Lines of tests that never finished are unknown and count for nothing.
    """
    failing: dict[int, int] = {}
    passing: dict[int, int] = {}
    failures = 0
    for passed, output in zip(evaluation.passed, evaluation.execution.outputs, strict=True):
        if output is None:
            continue
        failures += not passed
        counts = passing if passed else failing
        for line in output.lines:
            counts[line] = counts.get(line, 0) + 1
    passes = max(1, sum(evaluation.passed))
    table = {}
    for line in failing.keys() | passing.keys():
        bad, good = failing.get(line, 0), passing.get(line, 0)
        ochiai = bad / (failures * (bad + good)) ** 0.5 if failures else 0.0
        table[line] = (ochiai, bad / max(1, failures), good / passes)
    return table
