"""Everything that is executed: bugs, and what each of their single-edit candidates does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from agents.se_darwin.collection import CORPUS_LIMITS
from agents.se_darwin.corpus import load_subjects
from benchmarks.se_darwin.bugs import (
    Bug,
    build_suites,
    can_be_undone,
    fold_modules,
    foreign_bugs,
    inject_bugs,
    written_bugs,
)
from benchmarks.se_darwin.recording import RecordingSandbox
from benchmarks.se_darwin.replay import ReplayTask

Say = Callable[[str], None]
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """Attributes:
    functions: Most functions that are broken.
    bugs_each: One-edit bugs in each.
    foreign: Most bugs by foreign operators.
    two_edits: Most two-edit bugs.
    folds: Parts that the modules are dealt to.
    steps: Optimizer steps of each training.
    seeds: Paired seeds of the precision comparison.
    swing_steps: Steps of each pendulum that is swung up by planning.
    resamples: Of the bootstrap.
    """

    functions: int
    bugs_each: int
    foreign: int
    two_edits: int
    folds: int
    steps: int
    seeds: int
    swing_steps: int
    resamples: int


FULL = Effort(
    functions=10_000,
    bugs_each=3,
    foreign=90,
    two_edits=300,
    folds=5,
    steps=3000,
    seeds=5,
    swing_steps=80,
    resamples=4000,
)
QUICK = Effort(
    functions=30,
    bugs_each=1,
    foreign=6,
    two_edits=6,
    folds=2,
    steps=300,
    seeds=2,
    swing_steps=20,
    resamples=500,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A bug and what its candidates do."""

    bug: Bug
    replay: ReplayTask


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """Attributes:
    one_edit: Cases of one-edit bugs.
    foreign: Cases of foreign mutants.
    written: Cases of bugs written by hand.
    two_edits: Bugs that two edits undo, only; what is executed depends on the policy.
    lost: How many two-edit bugs no two edits undo.
    fold_of: Module to its fold.
    functions: How many were broken.
    """

    one_edit: Sequence[Case]
    foreign: Sequence[Case]
    written: Sequence[Case]
    two_edits: Sequence[Bug]
    lost: int
    fold_of: dict[str, int]
    functions: int


def open_recording(path: Path, parallel: int) -> RecordingSandbox:
    """A sandbox in which the whole corpus can run, once.

    Raises:
        SandboxUnavailableError: This host cannot isolate candidates.
    """
    modules = sorted({subject.module for subject in load_subjects()})
    return RecordingSandbox(path, modules=modules, limits=CORPUS_LIMITS, parallel=parallel)


def build_dataset(sandbox: RecordingSandbox, effort: Effort, seed: int, say: Say) -> Dataset:
    """Break functions and execute their candidates; what is on record is only read."""
    subjects = load_subjects()
    every = max(1, len(subjects) // effort.functions)
    suites = build_suites(sandbox, subjects[::every], seed)
    one_edit = inject_bugs(sandbox, suites, each=effort.bugs_each, edits=1, seed=seed)
    suite_of = {suite.subject.name: suite for suite in suites}
    injected = inject_bugs(sandbox, suites, each=1, edits=2, seed=seed)
    two_edits = [bug for bug in injected if can_be_undone(suite_of[bug.task.name], bug)]
    foreign = foreign_bugs(sandbox, _spread(suites, effort.foreign), seed=seed)
    say(
        f"{len(suites)} functions of {len({s.subject.module for s in suites})} modules, Python "
        f"{sys.version.split()[0]}: {len(one_edit)} one-edit bugs, {len(injected)} two-edit bugs"
    )
    return Dataset(
        one_edit=_execute(sandbox, one_edit, say),
        foreign=_execute(sandbox, foreign, say),
        written=_execute(sandbox, written_bugs(sandbox, seed=seed), say),
        two_edits=_spread(two_edits, effort.two_edits),
        lost=len(injected) - len(two_edits),
        fold_of=fold_modules(one_edit, effort.folds),
        functions=len(suites),
    )


def _execute(sandbox: RecordingSandbox, bugs: Sequence[Bug], say: Say) -> list[Case]:
    cases = []
    for number, bug in enumerate(bugs, 1):
        cases.append(Case(bug=bug, replay=ReplayTask.execute(sandbox, bug.task)))
        if number % 100 == 0:
            say(f"  {number} of {len(bugs)} bugs, {sandbox.executed} programs run so far")
    return cases


def _spread(items: Sequence[Item], most: int) -> Sequence[Item]:
    """At most *most* items, evenly over all."""
    if len(items) <= most:
        return items
    return [items[index * len(items) // most] for index in range(most)]
