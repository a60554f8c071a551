"""Assessment of a repair: which one to choose of those that pass, and how sure it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from agents.se_darwin.certainty.behaviour import Behaviour, Replay, is_opaque, key
from agents.se_darwin.certainty.choice import (
    Candidate,
    informative,
    pattern,
    weigh,
    weigh_evidence,
    weigh_proposal,
)
from agents.se_darwin.certainty.examples import Examples
from agents.se_darwin.certainty.inputs import ProgramInput, make_inputs
from agents.se_darwin.certainty.memorised import Memory
from agents.se_darwin.certainty.question import (
    Question,
    choose_question,
    find_without_result,
)
from agents.se_darwin.certainty.rivals import (
    Rivals,
    edit_chances,
    find_rivals,
    log_chance,
    run_proposals,
)
from agents.se_darwin.edits.difference import size_of
from agents.se_darwin.fork_server.wire import Call
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.search.evolution import Evolution
from agents.se_darwin.search.ranker import Ranker
from agents.se_darwin.tasks import RepairTask
from agents.se_darwin.tasks.evaluation import Evaluation

MAX_INPUTS = 120
"""Maximum number of inputs that are made; fewer if the program is slow."""
MIN_INPUTS = 10
REPLAY_SECONDS = 1.0
"""CPU seconds in which one program should run on all inputs."""
MAX_CANDIDATES = 400
"""Maximum number of candidates of the search for other repairs, at first."""
CONFIRMING_CANDIDATES = 3000
"""Maximum number of them if all repairs found do the same; many are needed to find a rare rival."""
SINGLE_EDITS = 200
"""Number of candidates of that search if the first repair took fewer."""
SEARCH_SHARE = 0.6
"""Share of the time for the search for other repairs; the rest is for their comparison."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assessment:
    """Result of `Assessor.assess`.

    Attributes:
        root: The program as given.
        candidates: The chosen repair, then the others that pass all tests.
        inputs: Inputs on which they were run; see `informative`.
        differing: Number of inputs on which they do not all do the same.
        rivals: What the search for other repairs found.
        question: Input on which the repairs differ most, if there is one.
        without_result: Call for which the chosen repair returns None although no call of the
            tests does, as Python, if there is one.
        examples: Number of the examples in the docstring; 0 if none can be run, or if the program
            as given does what all of them show.
        contradicted: Those that the chosen repair contradicts, as the docstring has them.
        note: What could not be done, and why; else empty.
        seconds: Time that the assessment took.
        places: Number of places that the chosen repair changes: its edits, or its new lines if it
            replaces the whole function.
        is_memorised: Whether the chosen repair probably repeats values of the checks.
        is_exposed: Whether a proposer wrote the chosen repair and its tests ran in one process with
            it, where it could have changed what they check.
        is_alone: Whether a proposer wrote the chosen repair, and no other repair was found.
        unchanged: Number of inputs that the tests do not contain, if the chosen repair does on all
            of them what the program as given does, and all results can be compared; else 0.
    """

    root: Evaluation
    candidates: Sequence[Candidate]
    inputs: Sequence[ProgramInput]
    differing: int
    rivals: Rivals
    question: Question | None
    without_result: str | None
    examples: int
    contradicted: Sequence[str]
    note: str
    seconds: float
    places: int
    is_memorised: bool
    is_exposed: bool
    is_alone: bool
    unchanged: int

    @property
    def chosen(self) -> Evaluation:
        """The repair to return."""
        return self.candidates[0].repair


@dataclass(frozen=True, kw_only=True, slots=True)
class _Comparison:
    """What the program as given and its repairs do on the same inputs.

    Attributes:
        inputs: Inputs on which all of them were run and not all fail.
        given: Results of the program as given.
        behaviours: Results of each repair, in order; of fewer if the time was up.
        is_partial: Whether results of the first repair could not be compared, such as functions.
    """

    inputs: list[ProgramInput]
    given: Behaviour
    behaviours: list[Behaviour]
    is_partial: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Assessor:
    """Assesses repairs of one task.

    Attributes:
        task: The task.
        sandbox: Sandbox in which programs run.
        ranker: Ranker of the search.
        seed: Seed of the inputs.
        seconds: Maximum time of an assessment, in seconds.
        stop: Called between generations and comparisons; True ends the assessment.
        uses_docstring: Whether the examples in the function's docstring count.
    """

    task: RepairTask
    sandbox: Sandbox
    ranker: Ranker
    seed: int
    seconds: float = 10.0
    stop: Callable[[], bool] = lambda: False
    uses_docstring: bool = True

    def assess(self, evolution: Evolution, first_repair: Evaluation) -> Assessment:
        """Find other repairs, run all on further inputs, and choose the most credible one.

        Args:
            evolution: Search that found the first repair; it goes on.
            first_repair: That repair, minimised.
        """
        began = time.monotonic()
        task, root = self.task, evolution.archive.members[0]
        most = max(evolution.evaluations, min(SINGLE_EDITS, len(task.space.edits)))
        examples = self._examples(root)
        contradicted: dict[Evaluation, frozenset[int]] = {}
        evolution.proposals.shares.forget_gains()

        def agrees(repair: Evaluation) -> bool:
            if examples is not None:
                contradicted[repair] = examples.contradicted(repair, self.sandbox)
            return not contradicted.get(repair)

        ends = began + SEARCH_SHARE * self.seconds

        def search(known: Rivals, candidates: int) -> Rivals:
            return find_rivals(
                evolution,
                known,
                candidates=candidates,
                deadline=ends,
                stop=self.stop,
                is_enough=agrees,
            )

        rivals = search(Rivals.of(first_repair), min(MAX_CANDIDATES, most))
        calls = task.record(self.sandbox, first_repair.source)
        recorded = [call for _, call in calls]
        comparison = self._compare(root, rivals.repairs, recorded, began)
        if not rivals.is_cut and len(set(map(pattern, comparison.behaviours))) == 1:
            searched = rivals.repairs
            more = search(rivals, max(CONFIRMING_CANDIDATES, rivals.candidates))
            rivals = replace(more, is_cut=False)  # the first part of the search was whole
            if rivals.repairs != searched:
                comparison = self._compare(root, rivals.repairs, recorded, began)
        if evolution.proposals:
            searched = rivals.repairs
            rivals = run_proposals(
                evolution, rivals, deadline=ends, stop=self.stop, is_enough=agrees
            )
            if rivals.repairs != searched:
                comparison = self._compare(root, rivals.repairs, recorded, began)
        inputs, behaviours = comparison.inputs, comparison.behaviours
        compared = rivals.repairs[: len(behaviours)]
        chances = edit_chances(task, root, self.ranker)

        memory = Memory.of(task, root, calls)
        memorised = {
            repair
            for repair, behaviour in zip(compared, behaviours, strict=True)
            if memory.is_repeated(repair, behaviour, comparison.given, inputs)
        }

        def evidence(repair: Evaluation) -> float:
            wrong = len(contradicted.get(repair, ())) + (repair in memorised)
            of_edits = weigh_evidence(log_chance(repair.edits, chances), wrong)
            agreement = evolution.proposals.agreement(repair.source)
            if not agreement:
                return of_edits
            return max(of_edits, weigh_proposal(agreement, len(repair.edits), wrong))

        candidates = weigh(
            compared,
            behaviours,
            comparison.given,
            inputs=inputs,
            is_passing=[root.passed[check] for check, _ in calls],
            evidence=[evidence(repair) for repair in compared],
        )
        candidates.sort(key=lambda candidate: candidate.repair in memorised)
        chosen = candidates[0].repair
        return Assessment(
            root=root,
            candidates=candidates,
            inputs=inputs,
            differing=sum(
                len(set(map(key, column))) > 1 for column in zip(*behaviours, strict=True)
            ),
            rivals=rivals,
            question=choose_question(task.function, candidates, inputs),
            without_result=find_without_result(task.function, candidates[0], inputs),
            examples=len(examples.calls) if examples else 0,
            contradicted=[
                examples.calls[number]
                for number in sorted(contradicted.get(chosen, ()))
                if examples is not None
            ],
            note=_note(calls, rivals, compared),
            seconds=time.monotonic() - began,
            places=size_of(task.space, chosen.edits),
            is_memorised=chosen in memorised,
            is_exposed=chosen.shares_process and task.is_written(chosen.edits),
            is_alone=len(rivals.repairs) == 1 and task.is_written(chosen.edits),
            unchanged=_unchanged(candidates[0].behaviour, comparison),
        )

    def _compare(
        self, root: Evaluation, repairs: Sequence[Evaluation], calls: Sequence[Call], began: float
    ) -> _Comparison:
        """Run the program as given and its *repairs* on inputs made from *calls*.

        Without time to run all of them, the comparison is of the first repair on no input.
        """
        deadline = began + self.seconds
        inputs = make_inputs(calls, _input_count(root, calls), Random(self.seed))
        replay = Replay(
            task=self.task,
            sandbox=self.sandbox,
            inputs=inputs,
            recorded=len(calls),
            deadline=deadline,
        )
        sources = [evaluation.source for evaluation in (root, *repairs)]
        given, *behaviours = replay.run(sources, self._stop_at(deadline)) or [()]
        if len(behaviours) < min(2, len(repairs)):
            return _Comparison(inputs=[], given=(), behaviours=[()])
        useful = informative(behaviours, given)
        return _Comparison(
            inputs=[inputs[place] for place in useful],
            given=tuple(given[place] for place in useful),
            behaviours=[tuple(behaviour[place] for place in useful) for behaviour in behaviours],
            is_partial=any(map(is_opaque, behaviours[0])),
        )

    def _examples(self, root: Evaluation) -> Examples | None:
        """Return the examples in the docstring, if the program as given contradicts one.

        Else they may be outdated: somebody may have copied them from what the program did.
        """
        examples = Examples.of(self.task, self.sandbox) if self.uses_docstring else None
        return examples if examples and examples.contradicted(root, self.sandbox) else None

    def _stop_at(self, deadline: float) -> Callable[[], bool]:
        return lambda: time.monotonic() >= deadline or self.stop()


def _unchanged(chosen: Behaviour, comparison: _Comparison) -> int:
    """See `Assessment.unchanged`."""
    further = [
        key(ours) == key(theirs)
        for ours, theirs, each in zip(chosen, comparison.given, comparison.inputs, strict=True)
        if each.changes
    ]
    return len(further) if all(further) and not comparison.is_partial else 0


def _input_count(root: Evaluation, calls: Sequence[object]) -> int:
    """Number of inputs that a program can be run on in about a second."""
    seconds_per_call = root.execution.cpu_seconds / max(1, len(calls))
    return max(MIN_INPUTS, min(MAX_INPUTS, int(REPLAY_SECONDS / max(seconds_per_call, 1e-6))))


def _note(calls: Sequence[object], rivals: Rivals, compared: Sequence[Evaluation]) -> str:
    """What could not be done, and why; else empty."""
    if not calls:
        return "no further inputs: no call of the tests could be copied"
    notes = ["the time was up before all candidates were run"] if rivals.is_cut else []
    if len(compared) < len(rivals.repairs):
        notes.append(f"time to compare {len(compared)} of {len(rivals.repairs)} repairs only")
    return "; ".join(notes)
