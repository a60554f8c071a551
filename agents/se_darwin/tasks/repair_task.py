"""A program to repair, its tests, and the evaluation of candidate repairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from types import ModuleType

from agents.se_darwin.edits import Edit, EditSpace
from agents.se_darwin.fork_server.wire import Call, ProgramNames, Wire
from agents.se_darwin.sandbox import Execution, Limits, PytestSuite, Sandbox, TestCase
from agents.se_darwin.tasks.evaluation import Evaluation
from agents.se_darwin.tasks.set_order import SEEDS_OF_ALL, uses_sets


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairTask:
    """A program that fails some of its tests.

    Attributes:
        name: Name of the task, and of the group of its transitions: ``prices.total``.
        function: Name by which the tests call the function.
        module: Standard-library module whose names the program can use, or None.
        space: Failing program, and the edits that can be applied to it.
        tests: Tests that a repair must pass.
        hidden_tests: Tests that detect a program that is overfitted to *tests*.
        fault: Description of the injected fault; empty if none was injected.
        original: Source of the program before the fault was injected, in normal form; empty if
            none was injected.
        limits: Time and memory limits of each candidate; None for the sandbox's own.
        suite: Test suite whose checks are *tests*; None if *tests* are plain calls.
        given: Evaluation of the program of *space*, with its lines, if it has been run already with
            these tests within its process.
        hash_seeds: Seeds of hashes under which a repair must pass the tests, too: under the first
            `SEEDS_OF_ALL`, and under all of them if there are sets.
    """

    name: str
    function: str
    module: str | None
    space: EditSpace
    tests: tuple[TestCase, ...]
    hidden_tests: tuple[TestCase, ...] = ()
    fault: str = ""
    original: str = ""
    limits: Limits | None = None
    suite: PytestSuite | None = None
    given: Evaluation | None = None
    hash_seeds: tuple[int, ...] = ()

    @property
    def within(self) -> RepairTask:
        """The same task with its test suite, if it has one, in the program's process."""
        return replace(self, suite=self.suite and replace(self.suite, within=True))

    @property
    def check_names(self) -> list[str]:
        """Names of the tests, in order: checks of the suite, or calls of the function."""
        if self.suite is not None:
            return list(self.suite.checks)
        return [f"{self.function}({_arguments(test)})" for test in self.tests]

    def evaluate(
        self,
        sandbox: Sandbox,
        programs: list[tuple[frozenset[Edit], str]],
        *,
        coverage: bool = False,
    ) -> list[Evaluation]:
        """Run *programs*, pairs of edits and source, on `tests`; return an evaluation of each.

        Each has processes of its own.
        """
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

    def screen(
        self, sandbox: Sandbox, programs: list[tuple[frozenset[Edit], str]]
    ) -> list[Evaluation]:
        """Do the same many times as fast; one that passes every test is run as by `evaluate`.

        See `Sandbox.screen`; `Sandbox.until` does not cut off the second run, and those under other
        orders of sets. If arguments or results cannot be sent between processes, and nothing else
        fails there, it is run with its tests in one fresh process instead.
        """
        executions = sandbox.screen(
            [source for _, source in programs],
            self.suite or self.tests,
            function=self.function,
            module=self.module,
            limits=self.limits,
        )
        evaluations = [
            Evaluation.of(edits, source, execution, self.tests)
            for (edits, source), execution in zip(programs, executions, strict=True)
        ]
        for index, screened in enumerate(evaluations):
            if screened.fixed:
                with sandbox.until(inf):
                    alone = self._run_alone(sandbox, programs[index])
                    evaluations[index] = self.check_order(sandbox, alone)
        return evaluations

    def check_order(self, sandbox: Sandbox, repair: Evaluation) -> Evaluation:
        """Run *repair*, if it passes every test, under other `hash_seeds`.

        All of them if there are sets in the program, or in its tests, which give them to it.

        Returns:
            *repair*, or the evaluation under a seed with which it fails a test.
        """
        if not repair.fixed:
            return repair
        has_sets = any(map(uses_sets, self._sources(repair.source)))
        seeds = self.hash_seeds if has_sets else self.hash_seeds[:SEEDS_OF_ALL]
        for runs, seed in enumerate(seeds, 1):
            other = self._run_alone(sandbox.with_hash_seed(seed), (repair.edits, repair.source))
            if not other.fixed:
                return replace(other, depends_on_order=True, order_runs=runs)
        return replace(repair, order_runs=len(seeds))

    def _sources(self, source: str) -> list[str]:
        """Sources of the program and of all that it runs with."""
        if self.suite is None:
            return [source, *self.check_names]
        suite = self.suite
        own_modules = suite.program.own_modules.values()
        return [source, *own_modules, suite.tests, *suite.conftests, *suite.helpers.values()]

    def is_written(self, edits: frozenset[Edit]) -> bool:
        """Whether a proposer wrote some of *edits*: they could do what no edit of `space` does."""
        return not edits.issubset(self.space.edits)

    def _run_alone(self, sandbox: Sandbox, program: tuple[frozenset[Edit], str]) -> Evaluation:
        """Evaluate *program* as `screen` confirms it."""
        [alone] = self.evaluate(sandbox, [program])
        if self.suite is None or self.suite.within:
            return replace(alone, shares_process=self.suite is not None)
        unsendable = all(
            passed or (output is not None and output.kind == "strange")
            for passed, output in zip(alone.passed, alone.execution.outputs, strict=True)
        )
        if unsendable and not alone.fixed:
            [alone] = self.within.evaluate(sandbox, [program])
            return replace(alone, shares_process=True)
        return alone

    def record(self, sandbox: Sandbox, source: str) -> list[tuple[int, Call]]:
        """Return the calls that the tests make of *source*, each with the number of its test.

        Calls whose arguments cannot be sent between processes are missing.
        """
        limits = self.limits or sandbox.limits
        if self.suite is not None:
            return sandbox.record(source, self.suite, function=self.function, limits=limits)
        wire = Wire(ProgramNames(ModuleType("program")))
        return [
            (
                number,
                {
                    "values": wire.encode(*test.arguments, *test.keywords.values()),
                    "names": list(test.keywords),
                    "awaited": False,
                },
            )
            for number, test in enumerate(self.tests)
        ]

    def replay(
        self,
        sandbox: Sandbox,
        sources: Sequence[str],
        calls: Sequence[Call],
        *,
        limits: Limits,
    ) -> list[Execution]:
        """Run *calls* with each of *sources*; see `Sandbox.replay`."""
        return sandbox.replay(
            sources,
            calls,
            function=self.function,
            limits=limits,
            module=self.module,
            suite=self.suite,
        )

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


def _arguments(test: TestCase) -> str:
    named = [f"{name}={value!r}" for name, value in test.keywords.items()]
    return ", ".join([*map(repr, test.arguments), *named])
