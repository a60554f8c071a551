"""Broken programs: faults that the agent's own edits make, and faults that they do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from agents.se_darwin.corpus import Subject
from agents.se_darwin.edits import Edit, EditSpace
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.tasks import RepairTask, SubjectSuite
from benchmarks.se_darwin.handwritten import WRITTEN
from benchmarks.se_darwin.mutation_operators import foreign_mutants

Family = Literal["one edit", "two edits", "foreign", "written"]
_MUTANTS_TRIED = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Bug:
    """Attributes:
    family: Where the fault comes from.
    kind: Of a foreign mutant, its operator; else the same as *family*.
    module: The unit of folds and of confidence intervals.
    task: What to repair.
    """

    family: Family
    kind: str
    module: str
    task: RepairTask


def build_suites(sandbox: Sandbox, subjects: Sequence[Subject], seed: int) -> list[SubjectSuite]:
    """Tests of each subject that is of use; see `SubjectSuite.build`."""
    built = [
        SubjectSuite.build(sandbox, subject, Random(f"{seed}/{subject.name}"))
        for subject in subjects
    ]
    return [suite for suite in built if suite is not None]


def inject_bugs(
    sandbox: Sandbox, suites: Sequence[SubjectSuite], *, each: int, edits: int, seed: int
) -> list[Bug]:
    """Up to *each* distinct faults of *edits* edits in every function."""
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


def can_be_undone(suite: SubjectSuite, bug: Bug) -> bool:
    """Whether each of the edits that broke *suite*'s function, alone, is undone by one edit.

    A string or a number that is nowhere else in the function is lost: no search can repair it.
    """
    broken_by = bug.task.fault.split("; ")
    for fault in (edit for edit in suite.space.edits if str(edit) in broken_by):
        space = EditSpace(suite.space.program({fault}), suite.subject.function)
        if all(space.program({edit}) != suite.space.source for edit in space.edits):
            return False
    return True


def foreign_bugs(sandbox: Sandbox, suites: Sequence[SubjectSuite], *, seed: int) -> list[Bug]:
    """One fault in every function by an operator that no edit inverts by construction."""
    bugs: list[Bug] = []
    for suite in suites:
        rng = Random(f"{seed}/foreign/{suite.subject.name}")
        mutants = list(foreign_mutants(suite.space.source, suite.subject.function))
        rng.shuffle(mutants)
        mutants.sort(key=lambda mutant: sum(bug.kind == mutant[0] for bug in bugs))
        for kind, source in mutants[:_MUTANTS_TRIED]:
            task = _fails(sandbox, suite, source, kind)
            if task is not None:
                module = suite.subject.module
                bugs.append(Bug(family="foreign", kind=kind, module=module, task=task))
                break
    return bugs


def written_bugs(sandbox: Sandbox, *, seed: int) -> list[Bug]:
    """Faults that a person wrote, in textbook functions that are in no training data."""
    bugs = []
    for program in WRITTEN:
        subject = Subject(
            module="math",
            function=program.function,
            source=program.right,
            generate=program.generate,
        )
        suite = SubjectSuite.build(sandbox, subject, Random(f"{seed}/written/{program.function}"))
        task = None if suite is None else _fails(sandbox, suite, program.wrong, program.fault)
        if task is None:
            raise ValueError(f"the written bug in {program.function!r} fails no test: change it")
        bugs.append(Bug(family="written", kind=program.fault, module=program.function, task=task))
    return bugs


def fold_modules(bugs: Sequence[Bug], folds: int) -> dict[str, int]:
    """Deal modules to folds, the largest first, so that each fold holds as many edits."""
    sizes: dict[str, int] = {}
    for bug in bugs:
        sizes[bug.module] = sizes.get(bug.module, 0) + len(bug.task.space.edits)
    filled, fold_of = [0] * folds, dict[str, int]()
    for module in sorted(sizes, key=lambda name: (-sizes[name], name)):
        fold = filled.index(min(filled))
        fold_of[module] = fold
        filled[fold] += sizes[module]
    return fold_of


def _fails(sandbox: Sandbox, suite: SubjectSuite, source: str, fault: str) -> RepairTask | None:
    """The task of repairing *source*; None if it passes every visible test."""
    task = RepairTask(
        name=suite.subject.name,
        function=suite.subject.function,
        module=suite.subject.module,
        space=EditSpace(source, suite.subject.function),
        tests=suite.tests,
        hidden_tests=suite.hidden_tests,
        fault=fault,
    )
    [root] = task.evaluate(sandbox, [(frozenset[Edit](), task.space.source)])
    return None if root.fixed else task
