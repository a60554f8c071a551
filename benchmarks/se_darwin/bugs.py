"""Broken programs: faults made by the agent's own edits, by other operators, and by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from agents.se_darwin.corpus import Subject
from agents.se_darwin.edits import Edit, EditSpace
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.tasks import RepairTask, SubjectSuite
from benchmarks.se_darwin.handwritten import HANDWRITTEN, HandwrittenBug
from benchmarks.se_darwin.mutation_operators import out_of_grammar_mutants

Family = Literal["one edit", "two edits", "foreign", "written"]
_MUTANTS_TRIED = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Bug:
    """Attributes:
    family: Source of the fault; ``foreign`` for operators outside the agent's edits, ``written``
        for bugs written by hand.
    kind: Mutation operator of a foreign bug, mistake of a written one, else *family*.
    module: Module of the function: the unit of folds and of confidence intervals.
    task: The repair task.
    """

    family: Family
    kind: str
    module: str
    task: RepairTask


def build_suites(sandbox: Sandbox, subjects: Sequence[Subject], seed: int) -> list[SubjectSuite]:
    """Build the tests of each usable subject; see `SubjectSuite.build`."""
    built = [
        SubjectSuite.build(sandbox, subject, Random(f"{seed}/{subject.name}"))
        for subject in subjects
    ]
    return [suite for suite in built if suite is not None]


def inject_bugs(
    sandbox: Sandbox, suites: Sequence[SubjectSuite], *, each: int, edits: int, seed: int
) -> list[Bug]:
    """Inject up to *each* distinct faults of *edits* edits into every function."""
    bugs = []
    for suite in suites:
        rng, seen = Random(f"{seed}/{edits}/{suite.subject.name}"), set[str]()
        for _ in range(each):
            task = suite.inject(sandbox, rng, edits)
            if task is not None and task.space.source not in seen:
                seen.add(task.space.source)
                family: Family = "one edit" if edits == 1 else "two edits"
                module = suite.subject.module
                bugs.append(Bug(family=family, kind=family, module=module, task=task))
    return bugs


def is_repairable(suite: SubjectSuite, bug: Bug) -> bool:
    """Whether one edit undoes each of the edits that broke *suite*'s function.

    A replaced string or number that occurs nowhere else in the function cannot be restored.
    """
    broken_by = bug.task.fault.split("; ")
    for fault in (edit for edit in suite.space.edits if str(edit) in broken_by):
        source, subject = suite.space.program({fault}), suite.subject
        space = EditSpace(source, subject.function, defined=subject.defined)
        if all(space.program({edit}) != suite.space.source for edit in space.edits):
            return False
    return True


def out_of_grammar_bugs(
    sandbox: Sandbox, suites: Sequence[SubjectSuite], *, seed: int
) -> list[Bug]:
    """Break every function with one operator that no edit inverts by construction."""
    bugs: list[Bug] = []
    for suite in suites:
        rng = Random(f"{seed}/foreign/{suite.subject.name}")
        mutants = list(out_of_grammar_mutants(suite.space.source, suite.subject.function))
        rng.shuffle(mutants)
        mutants.sort(key=lambda mutant: sum(bug.kind == mutant[0] for bug in bugs))
        for kind, source in mutants[:_MUTANTS_TRIED]:
            task = _failing_task(sandbox, suite, source, kind)
            if task is not None:
                module = suite.subject.module
                bugs.append(Bug(family="foreign", kind=kind, module=module, task=task))
                break
    return bugs


def handwritten_bugs(
    sandbox: Sandbox, programs: Sequence[HandwrittenBug] = HANDWRITTEN, *, seed: int
) -> list[Bug]:
    """Return the handwritten bugs, in textbook functions that are not in the training data."""
    bugs = []
    for program in programs:
        subject = Subject(
            module="math",
            function=program.function,
            source=program.right,
            generate=program.generate,
        )
        suite = SubjectSuite.build(sandbox, subject, Random(f"{seed}/written/{program.function}"))
        task = (
            None if suite is None else _failing_task(sandbox, suite, program.wrong, program.fault)
        )
        if task is None:
            raise ValueError(
                f"the handwritten bug in {program.function!r} fails no test; change it"
            )
        bugs.append(Bug(family="written", kind=program.fault, module=program.function, task=task))
    return bugs


def fold_modules(bugs: Sequence[Bug], folds: int) -> dict[str, int]:
    """Assign modules to folds, the largest first, so that folds have similar numbers of edits."""
    sizes: dict[str, int] = {}
    for bug in bugs:
        sizes[bug.module] = sizes.get(bug.module, 0) + len(bug.task.space.edits)
    filled, fold_of = [0] * folds, dict[str, int]()
    for module in sorted(sizes, key=lambda name: (-sizes[name], name)):
        fold = filled.index(min(filled))
        fold_of[module] = fold
        filled[fold] += sizes[module]
    return fold_of


def _failing_task(
    sandbox: Sandbox, suite: SubjectSuite, source: str, fault: str
) -> RepairTask | None:
    """Return the task of repairing *source*; None if it passes every visible test."""
    task = RepairTask(
        name=suite.subject.name,
        function=suite.subject.function,
        module=suite.subject.library,
        space=EditSpace(source, suite.subject.function, defined=suite.subject.defined),
        tests=suite.tests,
        hidden_tests=suite.hidden_tests,
        fault=fault,
    )
    [root] = task.evaluate(sandbox, [(frozenset[Edit](), task.space.source)])
    return None if root.fixed else task
