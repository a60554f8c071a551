"""Collect transitions by repairing standard-library functions that were broken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from random import Random

from agents.se_darwin.corpus import Subject, load_subjects
from agents.se_darwin.edits import Edit
from agents.se_darwin.features import Step, StepFeatures, observe
from agents.se_darwin.sandbox import Limits, Sandbox
from agents.se_darwin.search.evolution import Evolution, StepResult
from agents.se_darwin.search.operators import revise
from agents.se_darwin.search.policy import Policy
from agents.se_darwin.search.ranker import Ranker, SuspicionRanker
from agents.se_darwin.settings import SEDarwinSettings
from agents.se_darwin.tasks import RepairTask, SubjectSuite
from infrastructure.agent_contract import Transition

CORPUS_LIMITS = Limits(cpu_seconds=0.02)
"""The corpus runs its tests in 1-2 ms; a mutant that loops is stopped after ten times that."""
FEW_TESTS = (3, 10)
"""Fewest and most tests of a task that has as few as people write."""
NEAR_PER_TASK = 60
"""Edits at the place of the fault that a survey runs to find repairs among them."""


def open_corpus_sandbox(parallel: int = 2) -> Sandbox:
    """Open a sandbox in which the whole corpus can run.

    Raises:
        SandboxUnavailableError: This host cannot isolate candidates.
    """
    modules = sorted({subject.library for subject in load_subjects() if subject.library})
    return Sandbox(modules=modules, limits=CORPUS_LIMITS, parallel=parallel)


class TaskStream:
    """Endless stream of broken functions: every subject once per round, in random order.

    Args:
        sandbox: Sandbox in which the originals run.
        rng: Random generator.
        settings: Shares of the kinds of tasks; see `SEDarwinSettings`.
        subjects: Functions to break; None for the whole corpus.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        rng: Random,
        settings: SEDarwinSettings,
        *,
        subjects: tuple[Subject, ...] | None = None,
    ) -> None:
        self._sandbox, self._rng, self._settings = sandbox, rng, settings
        self._subjects = list(load_subjects() if subjects is None else subjects)
        self._suites: dict[str, SubjectSuite | None] = {}

    def __iter__(self) -> Iterator[RepairTask]:
        while self._subjects:
            self._rng.shuffle(self._subjects)
            for subject in list(self._subjects):
                task = self._inject_fault(subject)
                if task is not None:
                    yield task

    def _inject_fault(self, subject: Subject) -> RepairTask | None:
        if subject.name not in self._suites:
            self._suites[subject.name] = SubjectSuite.build(self._sandbox, subject, self._rng)
        suite = self._suites[subject.name]
        if suite is None:
            self._subjects.remove(subject)
            return None
        settings, rng = self._settings, self._rng
        faults = 2 if rng.random() < settings.two_edit_share else 1
        wide = rng.random() < settings.wide_fault_share
        if rng.random() < settings.few_tests_share:
            suite = suite.with_tests(rng, rng.randint(*FEW_TESTS))
        return suite.inject(self._sandbox, rng, faults, wide=wide)


def evolve_tasks(
    sandbox: Sandbox,
    rng: Random,
    settings: SEDarwinSettings,
    *,
    ranker: Ranker | None = None,
    stop: Callable[[], bool] = lambda: False,
    subjects: tuple[Subject, ...] | None = None,
) -> Iterator[Transition]:
    """Yield transitions without end, one per evaluated candidate.

    Args:
        sandbox: Sandbox in which candidates run.
        rng: Random generator; the same state gives the same transitions.
        settings: See `SEDarwinSettings`.
        ranker: World model that ranks candidates; None to rank them by suspiciousness.
        stop: Called between generations; True ends the stream.
        subjects: Functions to break; None for the whole corpus.
    """
    for task in TaskStream(sandbox, rng, settings, subjects=subjects):
        evolution = Evolution(
            task,
            sandbox,
            rng,
            Policy(
                ranker=ranker or SuspicionRanker(),
                batch=settings.candidates_per_generation,
                epsilon=settings.exploration,
            ),
        )
        while not evolution.archive.best.fixed:
            if stop():
                return
            remaining = settings.evaluations_per_task - evolution.evaluations
            outcomes = evolution.run_generation(remaining) if remaining > 0 else []
            if not outcomes:
                break
            for outcome in outcomes:
                yield to_transition(task, outcome, sandbox)


def survey_tasks(
    sandbox: Sandbox,
    rng: Random,
    settings: SEDarwinSettings,
    *,
    candidates: int = 60,
    stop: Callable[[], bool] = lambda: False,
    subjects: tuple[Subject, ...] | None = None,
) -> Iterator[Transition]:
    """Yield transitions without end: of each task, a sample of single edits and further repairs.

    A search meets few repairs. So the edits where the fault is are run too, and the repairs among
    them are shown beside the sample; also the edit that undoes the fault, if there is one. The
    propensity is the probability that the candidate is in the sample; 1 for the further repairs.

    Args:
        sandbox: Sandbox in which candidates run.
        rng: Random generator; the same state gives the same transitions.
        settings: Shares of the kinds of tasks; see `SEDarwinSettings`.
        candidates: Number of candidates to sample from each task.
        stop: Called between tasks; True ends the stream.
        subjects: Functions to break; None for the whole corpus.
    """
    nothing = frozenset[Edit]()
    for task in TaskStream(sandbox, rng, settings, subjects=subjects):
        if stop():
            return
        steps = revise(task.space, nothing)
        sample = rng.sample(steps, min(candidates, len(steps)))
        near = steps_at_fault(task, steps)
        tried = [
            *rng.sample(near, min(NEAR_PER_TASK, len(near))),
            *undoing_steps(task, near)[:1],
        ]
        sampled = _by_program(task, sample)
        programs = sampled | _by_program(task, tried) | sampled
        [root] = task.evaluate(sandbox, [(nothing, task.space.source)], coverage=True)
        children = task.screen(sandbox, [(step.edits, source) for source, step in programs.items()])
        observation, features = observe(task.space, root), StepFeatures(task.space, root)
        for (source, step), child in zip(programs.items(), children, strict=True):
            if source not in sampled and not child.fixed:
                continue
            outcome = StepResult(
                step=step,
                observation=observation,
                action=features.describe(step),
                propensity=len(sample) / len(steps) if source in sampled else 1.0,
                parent=root,
                child=child,
            )
            yield to_transition(task, outcome, sandbox)


def _by_program(task: RepairTask, steps: Sequence[Step]) -> dict[str, Step]:
    """The *steps* by the program that they make, if it is another one than the given program."""
    programs = {task.space.program(step.edits): step for step in steps}
    programs.pop(task.space.source, None)
    return programs


def steps_at_fault(task: RepairTask, steps: Sequence[Step]) -> list[Step]:
    """Return those of *steps* at nodes that reach to the lines that the fault changed."""
    broken, original = task.space.source.splitlines(), task.original.splitlines()
    matcher = SequenceMatcher(a=broken, b=original, autojunk=False)
    lines = {
        line
        for tag, start, end, _, _ in matcher.get_opcodes()
        if tag != "equal"
        for line in range(start, end + 2)  # an insertion touches the lines before and after it
    }
    at_fault = []
    for step in steps:
        [edit] = step.changed
        end = getattr(task.space.nodes[edit.node], "end_lineno", None) or edit.line
        if not lines.isdisjoint(range(edit.line, end + 1)):
            at_fault.append(step)
    return at_fault


def undoing_steps(task: RepairTask, steps: Sequence[Step]) -> list[Step]:
    """Return those of *steps* that make the program from before the fault."""
    return [step for step in steps if task.space.program(step.edits) == task.original]


def to_transition(task: RepairTask, outcome: StepResult, sandbox: Sandbox) -> Transition:
    """Convert *outcome*; a repair is also run on the hidden tests, for information only."""
    delta = outcome.child.score - outcome.parent.score
    info: dict[str, str | float] = {
        "module": task.name.rpartition(".")[0],
        "fault": task.fault,
        "edits": "; ".join(sorted(map(str, outcome.step.edits))),
        "proposer": outcome.proposer,
    }
    if outcome.child.fixed and task.hidden_tests:
        info["hidden_pass_rate"] = task.hidden_pass_rate(sandbox, outcome.child.source)
    return Transition(
        group=task.name,
        observation=outcome.observation,
        action=outcome.action,
        reward=delta,
        next_observation={
            "outcome": outcome.label,
            "score_delta": delta,
            "pass_rate": outcome.child.score,
        },
        terminated=outcome.child.fixed,
        propensity=outcome.propensity,
        info=info,
    )
