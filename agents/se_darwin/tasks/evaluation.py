"""Evaluation of a candidate: tests passed, symptoms of the failures, line suspiciousness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agents.se_darwin.edits import Edit
from agents.se_darwin.fork_server.check import PASSED
from agents.se_darwin.sandbox import Execution, Output, TestCase

NOT_RAISED = "Failed"
"""Exception of a test that waited for another one: by `pytest.raises`, in the sandbox too."""
_TYPES = {"[": "list", "(": "tuple", "{": "dict", "'": "text", '"': "text", "b": "bytes"}
_TYPES |= {"T": "bool", "F": "bool", "N": "None", "s": "set", "i": "iterator", "-": "number"}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Evaluation:
    """An executed program.

    Attributes:
        edits: Edits that were applied to the program under repair.
        source: Source of the program, in normal form.
        passed: Whether it passed, by test.
        execution: Results of all tests.
        symptoms: Short description of the failure, by failed test.
        wanted: Canonical texts of the values that failed tests expected, as far as they are known.
        got: Canonical texts of the values that they got instead.
        depends_on_order: Whether it passes every test under one order of sets and fails some under
            another one, whose results these are.
        shares_process: Whether it was confirmed in one process with its tests.
        order_runs: Number of times that it was run once more under another order of sets.
    """

    edits: frozenset[Edit]
    source: str
    passed: tuple[bool, ...]
    execution: Execution
    symptoms: tuple[str, ...]
    wanted: tuple[str, ...] = ()
    got: tuple[str, ...] = ()
    depends_on_order: bool = False
    shares_process: bool = False
    order_runs: int = 0

    @classmethod
    def of(
        cls,
        edits: frozenset[Edit],
        source: str,
        execution: Execution,
        tests: Sequence[TestCase],
    ) -> Evaluation:
        """Compare the results of *execution* with those that *tests* expect."""
        pairs = list(zip(tests, execution.outputs, strict=True))
        values = [
            (expected_text(test, output), output.text)
            for test, output in pairs
            if output is not None and output.kind == test.kind == "value"
            if not test.passes(output)
        ]
        return cls(
            edits=edits,
            source=source,
            passed=tuple(test.passes(output) for test, output in pairs),
            execution=execution,
            symptoms=tuple(_symptom(test, out) for test, out in pairs if not test.passes(out)),
            wanted=tuple(wanted for wanted, _ in values),
            got=tuple(got for _, got in values),
        )

    @property
    def score(self) -> float:
        """Share of tests passed, in [0, 1]."""
        return sum(self.passed) / len(self.passed)

    @property
    def fixed(self) -> bool:
        """Whether every test passes."""
        return all(self.passed)


def label_outcome(parent: Evaluation, child: Evaluation) -> str:
    """Return one of `agents.se_darwin.features.OUTCOMES`."""
    if child.fixed:
        return "fixed"
    change = child.score - parent.score
    return "better" if change > 0 else "worse" if change < 0 else "same"


def _symptom(test: TestCase, output: Output | None) -> str:
    if output is None or output.kind == "endless":
        return "unfinished"
    if output.kind == "strange":
        return "strange"
    if output.kind != test.kind or output.kind == "raise":
        if output.kind == "raise" and output.text == NOT_RAISED:
            return "value for exception"
        got = output.text if output.kind == "raise" else "value"
        return f"{got} for {'exception' if test.kind == 'raise' else 'value'}"
    return _value_symptom(expected_text(test, output), output.text)


def _value_symptom(expected: str, text: str) -> str:
    if text == expected:
        return "arguments differ"
    wanted, got = _type_of(expected), _type_of(text)
    return (
        f"{got} for {wanted}"
        if wanted != got
        else f"{wanted} {_difference(wanted, expected, text)}"
    )


def expected_text(test: TestCase, output: Output) -> str:
    """Canonical text of the value that *test* expected where it got *output*.

    That of a check of a suite is known to the suite runner only, which reports it; it is empty
    where the check does not use ``==``.
    """
    return output.arguments if test.expected == PASSED else test.expected


def _type_of(text: str) -> str:
    return _TYPES.get(text[:1], "number" if text[:1].isdigit() else "other")


def _difference(kind: str, wanted: str, got: str) -> str:
    if kind == "number":
        try:
            change = float(got) - float(wanted)
        except ValueError:  # a complex number
            return "differs"
        size = "one " if abs(change) == 1 else ""
        return f"{size}{'greater' if change > 0 else 'less'}"
    if len(got) == len(wanted):
        return "differs"
    relation = "longer" if len(got) > len(wanted) else "shorter"
    shorter, longer = sorted((wanted[:-1], got[:-1]), key=len)
    return f"{relation} start" if longer.startswith(shorter) else relation


def ochiai(failed: int, failures: int, succeeded: int) -> float:
    """Return the Ochiai suspicion of what *failed* of all *failures* and *succeeded* tests visit.

    It is failed / sqrt(failures * (failed + succeeded)), in [0, 1].
    """
    return failed / (failures * (failed + succeeded)) ** 0.5 if failed else 0.0


def line_suspiciousness(evaluation: Evaluation) -> dict[int, tuple[float, float, float]]:
    """Return, by line, its Ochiai suspiciousness and the shares of failing and passing tests.

    Minus the number of a line stands for an exception that is raised in it.

    See `ochiai`. Tests that did not finish are ignored, because their lines are unknown.
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
        failed, succeeded = failing.get(line, 0), passing.get(line, 0)
        suspicion = ochiai(failed, failures, succeeded)
        table[line] = (suspicion, failed / max(1, failures), succeeded / passes)
    return table
