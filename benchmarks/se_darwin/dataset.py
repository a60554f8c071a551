"""The data set: bugs, and the results of all their single-edit candidates."""

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
    fold_modules,
    handwritten_bugs,
    inject_bugs,
    is_repairable,
    out_of_grammar_bugs,
)
from benchmarks.se_darwin.caching_sandbox import CachingSandbox
from benchmarks.se_darwin.handwritten import HANDWRITTEN
from benchmarks.se_darwin.replay import ReplayTask

Log = Callable[[str], None]
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """Attributes:
    functions: Maximum number of functions to break.
    bugs_each: One-edit bugs in each function.
    foreign: Maximum number of bugs by operators outside the agent's edits.
    written: Maximum number of handwritten bugs.
    two_edits: Maximum number of two-edit bugs.
    folds: Number of folds of the modules.
    steps: Optimizer steps of each training.
    seeds: Paired seeds of the precision comparison.
    swing_transitions: Transitions of the pendulum to learn from.
    swing_steps: Steps of each pendulum episode that is planned in the model.
    resamples: Bootstrap resamples.
    """

    functions: int
    bugs_each: int
    foreign: int
    written: int
    two_edits: int
    folds: int
    steps: int
    seeds: int
    swing_transitions: int
    swing_steps: int
    resamples: int


FULL = Effort(
    functions=10_000,
    bugs_each=3,
    foreign=90,
    written=len(HANDWRITTEN),
    two_edits=300,
    folds=5,
    steps=3000,
    seeds=5,
    swing_transitions=12_000,
    swing_steps=80,
    resamples=4000,
)
QUICK = Effort(
    functions=30,
    bugs_each=1,
    foreign=6,
    written=len(HANDWRITTEN),
    two_edits=6,
    folds=2,
    steps=300,
    seeds=2,
    swing_transitions=12_000,
    swing_steps=20,
    resamples=500,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutedBug:
    """A bug and the results of its candidates."""

    bug: Bug
    replay: ReplayTask


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """Attributes:
    one_edit: One-edit bugs.
    foreign: Bugs by operators outside the agent's edits.
    written: Handwritten bugs.
    two_edits: Bugs that two edits undo; the policy decides which candidates are executed.
    lost: Number of two-edit bugs that no two edits undo.
    fold_of: Fold of each module.
    functions: Number of broken functions.
    """

    one_edit: Sequence[ExecutedBug]
    foreign: Sequence[ExecutedBug]
    written: Sequence[ExecutedBug]
    two_edits: Sequence[Bug]
    lost: int
    fold_of: dict[str, int]
    functions: int


def open_caching_sandbox(path: Path, parallel: int) -> CachingSandbox:
    """Open a caching sandbox in which the whole corpus can run.

    Raises:
        SandboxUnavailableError: This host cannot isolate candidates.
    """
    modules = sorted({subject.library for subject in load_subjects() if subject.library})
    return CachingSandbox(path, modules=modules, limits=CORPUS_LIMITS, parallel=parallel)


def build_dataset(sandbox: CachingSandbox, effort: Effort, seed: int, log: Log) -> Dataset:
    """Break functions and execute their candidates; cached results are not executed again."""
    subjects = load_subjects()
    stride = max(1, len(subjects) // effort.functions)
    suites = build_suites(sandbox, subjects[::stride], seed)
    one_edit = inject_bugs(sandbox, suites, each=effort.bugs_each, edits=1, seed=seed)
    suite_of = {suite.subject.name: suite for suite in suites}
    injected = inject_bugs(sandbox, suites, each=1, edits=2, seed=seed)
    two_edits = [bug for bug in injected if is_repairable(suite_of[bug.task.name], bug)]
    foreign = out_of_grammar_bugs(sandbox, _spread(suites, effort.foreign), seed=seed)
    log(
        f"{len(suites)} functions of {len({s.subject.module for s in suites})} modules, Python "
        f"{sys.version.split()[0]}: {len(one_edit)} one-edit bugs, {len(injected)} two-edit bugs"
    )
    return Dataset(
        one_edit=_execute(sandbox, one_edit, log),
        foreign=_execute(sandbox, foreign, log),
        written=_execute(
            sandbox, handwritten_bugs(sandbox, HANDWRITTEN[: effort.written], seed=seed), log
        ),
        two_edits=_spread(two_edits, effort.two_edits),
        lost=len(injected) - len(two_edits),
        fold_of=fold_modules(one_edit, effort.folds),
        functions=len(suites),
    )


def _execute(sandbox: CachingSandbox, bugs: Sequence[Bug], log: Log) -> list[ExecutedBug]:
    cases = []
    for number, bug in enumerate(bugs, 1):
        cases.append(ExecutedBug(bug=bug, replay=ReplayTask.execute(sandbox, bug.task)))
        if number % 100 == 0:
            log(f"  {number} of {len(bugs)} bugs, {sandbox.executed} programs run so far")
    return cases


def _spread(items: Sequence[Item], most: int) -> Sequence[Item]:
    """Return at most *most* items, evenly spaced."""
    if len(items) <= most:
        return items
    return [items[index * len(items) // most] for index in range(most)]
