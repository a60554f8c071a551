"""Build a subject's tests with its original as the oracle, and inject faults into it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from random import Random

from agents.se_darwin.corpus import Subject
from agents.se_darwin.edits import Edit, EditSpace
from agents.se_darwin.faults import draw_faults
from agents.se_darwin.fork_server.canonical import canonical
from agents.se_darwin.sandbox import Sandbox, TestCase
from agents.se_darwin.tasks.repair_task import RepairTask

VISIBLE_TESTS = 40
HIDDEN_TESTS = 60
_DRAWS = 200
_FAULTS_PER_BATCH = 4
_BATCHES = 4
_MAX_SAME_OUTCOME_SHARE = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class SubjectSuite:
    """A subject with tests whose expected results come from the original function.

    Attributes:
        subject: The function.
        space: The original and its edits, from which faults are drawn.
        tests: Tests that the search sees.
        hidden_tests: Tests that it does not see.
    """

    subject: Subject
    space: EditSpace
    tests: tuple[TestCase, ...]
    hidden_tests: tuple[TestCase, ...]

    @classmethod
    def build(cls, sandbox: Sandbox, subject: Subject, rng: Random) -> SubjectSuite | None:
        """Draw inputs, run the original on them in the sandbox, and keep its results as oracle.

        The visible tests are the most diverse of their share of the draws; the hidden tests are
        kept as drawn.

        Returns:
            The suite; None if the subject's module or helpers are missing, it runs too long, it is
            not deterministic, or nearly all inputs have the same outcome.
        """
        if subject.library in sandbox.missing_modules:
            return None
        drawn = {repr(case): case for case in (subject.generate(rng) for _ in range(_DRAWS))}
        cases = [TestCase(arguments=case, expected="") for case in drawn.values()]
        first, second = sandbox.run(
            [subject.source] * 2,
            cases,
            function=subject.function,
            module=subject.library,
            coverage=True,
        )
        if first.outputs != second.outputs or None in first.outputs:
            return None
        paths, tests = list[frozenset[int]](), list[TestCase]()
        for case, output in zip(cases, first.outputs, strict=True):
            if output is None or output.kind in ("strange", "endless"):
                continue
            if output.text != "NameError":
                paths.append(output.lines)
                tests.append(
                    replace(
                        case,
                        kind="raise" if output.kind == "raise" else "value",
                        expected=output.text,
                        expected_arguments=output.arguments,
                    )
                )
        split = max(len(tests) - HIDDEN_TESTS, VISIBLE_TESTS)
        visible = _order_by_diversity(tests[:split], paths[:split])[:VISIBLE_TESTS]
        outcomes = Counter(_outcome_of(test) for test in visible)
        raising = sum(test.kind == "raise" for test in visible)
        if not visible or max(raising, *outcomes.values()) > _MAX_SAME_OUTCOME_SHARE * len(visible):
            return None
        return cls(
            subject=subject,
            space=EditSpace(subject.source, subject.function, defined=subject.defined),
            tests=tuple(visible),
            hidden_tests=tuple(tests[split:]),
        )

    def with_tests(self, rng: Random, count: int) -> SubjectSuite:
        """Return the suite with *count* random tests of those visible; the others are hidden."""
        chosen = set(rng.sample(range(len(self.tests)), min(count, len(self.tests))))
        visible = [test for number, test in enumerate(self.tests) if number in chosen]
        others = [test for number, test in enumerate(self.tests) if number not in chosen]
        return replace(
            self, tests=tuple(visible), hidden_tests=(*others, *self.hidden_tests)[:HIDDEN_TESTS]
        )

    def inject(
        self, sandbox: Sandbox, rng: Random, edits: int = 1, *, wide: bool = False
    ) -> RepairTask | None:
        """Inject a fault that fails a visible test; None if no draw does.

        Args:
            sandbox: Sandbox in which broken programs run.
            rng: Random generator.
            edits: Number of edits or faults.
            wide: Whether to make `agents.se_darwin.faults` instead of the agent's own edits.
        """
        original = RepairTask(
            name=self.subject.name,
            function=self.subject.function,
            module=self.subject.library,
            space=self.space,
            tests=self.tests,
            hidden_tests=self.hidden_tests,
            original=self.space.source,
        )
        faults = self._wide_faults(rng, edits) if wide else self._own_faults(rng, edits)
        for _ in range(_BATCHES):
            batch = dict(islice(faults, _FAULTS_PER_BATCH))
            programs = [(frozenset[Edit](), source) for source in batch]
            for evaluation in original.screen(sandbox, programs):
                if not evaluation.fixed:
                    return replace(
                        original,
                        space=EditSpace(
                            evaluation.source,
                            self.subject.function,
                            defined=self.subject.defined,
                        ),
                        fault=batch[evaluation.source],
                    )
        return None

    def _wide_faults(self, rng: Random, count: int) -> Iterator[tuple[str, str]]:
        """Yield programs with *count* faults of people's kinds, and the kinds."""
        function = self.subject.function
        for first in draw_faults(self.space.source, function, rng):
            kinds, source = first.kind, first.source
            for _ in range(count - 1):
                fault = next(draw_faults(source, function, rng), None)
                if fault is not None:
                    kinds, source = f"{kinds}; {fault.kind}", fault.source
            yield source, kinds

    def _own_faults(self, rng: Random, edits: int) -> Iterator[tuple[str, str]]:
        """Yield programs that *edits* of the agent's edits make, and the edits.

        The kind of edit is drawn first, uniformly, because edits of variables outnumber the rest.
        """
        by_kind: dict[str, list[Edit]] = defaultdict(list)
        for edit in self.space.edits:
            by_kind[edit.kind].append(edit)
        kinds = sorted(by_kind)
        for _ in range(1000 if kinds else 0):
            fault = frozenset(rng.choice(by_kind[rng.choice(kinds)]) for _ in range(edits))
            if len({edit.node for edit in fault}) == edits:
                yield self.space.program(fault), "; ".join(sorted(map(str, fault)))


def _order_by_diversity(
    tests: Sequence[TestCase], paths: Sequence[frozenset[int]]
) -> list[TestCase]:
    """Order *tests* by a round robin over paths, and on each path over outcomes.

    Args:
        tests: Tests as drawn.
        paths: Lines that each test runs.
    """
    by_path: dict[frozenset[int], dict[object, list[TestCase]]] = {}
    for test, path in zip(tests, paths, strict=True):
        by_path.setdefault(path, {}).setdefault(_outcome_of(test), []).append(test)
    return list(_round_robin([list(_round_robin([*group.values()])) for group in by_path.values()]))


def _round_robin(groups: Sequence[Sequence[TestCase]]) -> Iterator[TestCase]:
    """Yield the first item of each group, then the second of each, and so on."""
    for round_ in zip_longest(*groups):
        yield from (test for test in round_ if test is not None)


def _outcome_of(test: TestCase) -> tuple[str, str | None]:
    """Return the expected result, and the arguments after the call if the call changes them."""
    changed = test.expected_arguments != canonical(test.arguments)
    return test.expected, test.expected_arguments if changed else None
