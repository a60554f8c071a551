"""Repair tasks: a standard-library function, tests from its own behaviour, an injected fault."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from random import Random

from agents.se_darwin.corpus import Subject
from agents.se_darwin.edits import Edit, EditSpace
from agents.se_darwin.evaluation import Evaluation
from agents.se_darwin.jail.canonical import canonical
from agents.se_darwin.sandbox import Exam, Limits, Sandbox, TestCase

VISIBLE_TESTS = 40
HIDDEN_TESTS = 60
_DRAWS = 200
_FAULTS_PER_BATCH = 4
_BATCHES = 4
_MOST_ALIKE = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairTask:
    """A program that fails some of its tests.

    Attributes:
        name: The function's; the group of its transitions.
        function: What the tests call.
        module: Module that lends its namespace, or None.
        space: The failing program and its edits.
        tests: What a repair must pass.
        hidden_tests: What tells a repair from a program fitted to the tests.
        fault: What was injected, for the record.
        limits: For each candidate; None for those of the sandbox.
        exam: A test module whose checks *tests* are, if that is where they come from.
    """

    name: str
    function: str
    module: str | None
    space: EditSpace
    tests: tuple[TestCase, ...]
    hidden_tests: tuple[TestCase, ...] = ()
    fault: str = ""
    limits: Limits | None = None
    exam: Exam | None = None

    def evaluate(
        self,
        sandbox: Sandbox,
        programs: list[tuple[frozenset[Edit], str]],
        *,
        coverage: bool = False,
    ) -> list[Evaluation]:
        """Run programs, given as edits and source, on the visible tests."""
        executions = sandbox.run(
            [source for _, source in programs],
            self.exam or self.tests,
            function=self.function,
            module=self.module,
            coverage=coverage,
            limits=self.limits,
        )
        return [
            Evaluation.judge(edits, source, execution, self.tests)
            for (edits, source), execution in zip(programs, executions, strict=True)
        ]

    def hidden_pass_rate(self, sandbox: Sandbox, source: str) -> float:
        """Share of the hidden tests that *source* passes; 1 where there are none."""
        if not self.hidden_tests:
            return 1.0
        [execution] = sandbox.run(
            [source],
            self.hidden_tests,
            function=self.function,
            module=self.module,
            limits=self.limits,
        )
        judged = Evaluation.judge(frozenset(), source, execution, self.hidden_tests)
        return judged.score


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """A subject with tests whose expectations are what the original did.

    Attributes:
        subject: The function.
        space: The original and its edits, from which faults are drawn.
        tests: Visible tests.
        hidden_tests: Others.
    """

    subject: Subject
    space: EditSpace
    tests: tuple[TestCase, ...]
    hidden_tests: tuple[TestCase, ...]

    @classmethod
    def build(cls, sandbox: Sandbox, subject: Subject, rng: Random) -> Suite | None:
        """Draw inputs and record what the original makes of them, in the sandbox.

        The visible tests are the most varied of their share of the draws; the hidden ones are
        as they were drawn.

        Returns:
            None for a subject that is of no use here: its module or its helpers are missing,
            it runs too long, it is not deterministic, or nearly all inputs end alike.
        """
        if subject.module in sandbox.missing_modules:
            return None
        drawn = {repr(case): case for case in (subject.generate(rng) for _ in range(_DRAWS))}
        cases = [TestCase(arguments=case, expected="") for case in drawn.values()]
        first, second = sandbox.run(
            [subject.source] * 2,
            cases,
            function=subject.function,
            module=subject.module,
            coverage=True,
        )
        if first.outputs != second.outputs or None in first.outputs:
            return None
        paths, tests = list[frozenset[int]](), list[TestCase]()
        for case, output in zip(cases, first.outputs, strict=True):
            if output is not None and output.kind != "strange" and output.text != "NameError":
                paths.append(output.lines)
                tests.append(
                    replace(
                        case,
                        kind=output.kind,
                        expected=output.text,
                        expected_arguments=output.arguments,
                    )
                )
        seen = max(len(tests) - HIDDEN_TESTS, VISIBLE_TESTS)
        visible = _varied(tests[:seen], paths[:seen])[:VISIBLE_TESTS]
        outcomes = Counter(_outcome_of(test) for test in visible)
        raising = sum(test.kind == "raise" for test in visible)
        if not visible or max(raising, *outcomes.values()) > _MOST_ALIKE * len(visible):
            return None
        return cls(
            subject=subject,
            space=EditSpace(subject.source, subject.function),
            tests=tuple(visible),
            hidden_tests=tuple(tests[seen:]),
        )

    def inject(self, sandbox: Sandbox, rng: Random, edits: int = 1) -> RepairTask | None:
        """Break the function so that it fails a visible test; None if no draw does.

        Kinds of edit are drawn evenly, since there are far more variables than anything else.
        """
        original = RepairTask(
            name=self.subject.name,
            function=self.subject.function,
            module=self.subject.module,
            space=self.space,
            tests=self.tests,
            hidden_tests=self.hidden_tests,
        )
        faults = self._faults(rng, edits)
        for _ in range(_BATCHES):
            batch = [fault for fault, _ in zip(faults, range(_FAULTS_PER_BATCH), strict=False)]
            programs = [(fault, self.space.program(fault)) for fault in batch]
            for evaluation in original.evaluate(sandbox, programs):
                if not evaluation.fixed:
                    return replace(
                        original,
                        space=EditSpace(evaluation.source, self.subject.function),
                        fault="; ".join(str(edit) for edit in evaluation.edits),
                    )
        return None

    def _faults(self, rng: Random, edits: int) -> Iterator[frozenset[Edit]]:
        by_kind: dict[str, list[Edit]] = defaultdict(list)
        for edit in self.space.edits:
            by_kind[edit.kind].append(edit)
        kinds = sorted(by_kind)
        for _ in range(1000 if kinds else 0):
            fault = frozenset(rng.choice(by_kind[rng.choice(kinds)]) for _ in range(edits))
            if len({edit.node for edit in fault}) == edits:
                yield fault


def _varied(tests: Sequence[TestCase], paths: Sequence[frozenset[int]]) -> list[TestCase]:
    """Those that tell programs apart come first: each path in turn, on each path each outcome.

    Args:
        tests: As drawn.
        paths: Lines that each runs through.
    """
    of_path: dict[frozenset[int], dict[object, list[TestCase]]] = {}
    for test, path in zip(tests, paths, strict=True):
        of_path.setdefault(path, {}).setdefault(_outcome_of(test), []).append(test)
    return list(_in_turn([list(_in_turn([*group.values()])) for group in of_path.values()]))


def _in_turn(groups: Sequence[Sequence[TestCase]]) -> Iterator[TestCase]:
    """The first of each group, the second of each, and so on."""
    for round_ in zip_longest(*groups):
        yield from (test for test in round_ if test is not None)


def _outcome_of(test: TestCase) -> tuple[str, str | None]:
    """What is expected, and the arguments after the call where the call changed them."""
    changed = test.expected_arguments != canonical(test.arguments)
    return test.expected, test.expected_arguments if changed else None
