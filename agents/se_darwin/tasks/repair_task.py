"""A program that fails some of its tests, and how candidates for it are evaluated."""

from __future__ import annotations

from dataclasses import dataclass

from agents.se_darwin.edits import Edit, EditSpace
from agents.se_darwin.sandbox import Limits, PytestSuite, Sandbox, TestCase
from agents.se_darwin.tasks.evaluation import Evaluation


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairTask:
    """A program that fails some of its tests.

    Attributes:
        name: Name of the function; the group of its transitions.
        function: Name by which the tests call it.
        module: Module whose names the program sees, or None.
        space: The failing program and its edits.
        tests: Tests that a repair must pass.
        hidden_tests: Tests that detect a program that is overfitted to *tests*.
        fault: Description of the injected fault.
        limits: Limits of each candidate; None for those of the sandbox.
        suite: Test suite whose checks are *tests*; None if *tests* are plain calls.
    """

    name: str
    function: str
    module: str | None
    space: EditSpace
    tests: tuple[TestCase, ...]
    hidden_tests: tuple[TestCase, ...] = ()
    fault: str = ""
    limits: Limits | None = None
    suite: PytestSuite | None = None

    def evaluate(
        self,
        sandbox: Sandbox,
        programs: list[tuple[frozenset[Edit], str]],
        *,
        coverage: bool = False,
    ) -> list[Evaluation]:
        """Run *programs*, pairs of edits and source, on the visible tests."""
        executions = sandbox.run(
            [source for _, source in programs],
            self.suite or self.tests,
            function=self.function,
            module=self.module,
            coverage=coverage,
            limits=self.limits,
        )
        return [
            Evaluation.of(edits, source, execution, self.tests)
            for (edits, source), execution in zip(programs, executions, strict=True)
        ]

    def hidden_pass_rate(self, sandbox: Sandbox, source: str) -> float:
        """Return the share of hidden tests that *source* passes; 1 without hidden tests."""
        if not self.hidden_tests:
            return 1.0
        [execution] = sandbox.run(
            [source],
            self.hidden_tests,
            function=self.function,
            module=self.module,
            limits=self.limits,
        )
        return Evaluation.of(frozenset(), source, execution, self.hidden_tests).score
