"""Result of `SEDarwinAgent.evolve_solution`, and the search that it describes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypedDict

from agents.se_darwin.certainty import Assessment, Certainty
from agents.se_darwin.edits.rewrite import rewrite
from agents.se_darwin.proposals import ProposerReport
from agents.se_darwin.search.evolution import Evolution, StepResult
from agents.se_darwin.solution.evolved_program import EditDescriber, EvolvedProgram, unified_diff
from agents.se_darwin.solution.request import EvolutionRequest
from agents.se_darwin.tasks.evaluation import Evaluation

Ended = Literal[
    "success", "evaluations", "seconds", "iterations", "exhausted", "stopped", "contradicted"
]
"""Why a search ended: by success, a limit, for lack of new candidates, or as its caller asked.

``contradicted``: each program found that passes all tests contradicts an example in the docstring.
"""


class Iteration(TypedDict):
    """One generation: candidates run, those that pass every test, best score so far, seconds."""

    generation: int
    trajectories: int
    successful: int
    best_score: float
    time: float


class EvolutionResult(TypedDict):
    """Result of `SEDarwinAgent.evolve_solution`.

    The keys are those of the original system, and: ``ranked_by``, the ranker of the candidates;
    ``recorded``, what was recorded to learn from; in the statistics ``timed_out``, the number of
    candidates that exceeded their time limit, which is at most ``timeout_seconds``; ``ended``, why
    the search ended; ``ended_process``, the check in which the given program's process ended before
    its time, if any; ``left_out``, why a test was not run, for each such test; ``failing``, names
    of the checks that the best program fails; ``certainty``, how sure the repair is, or None if the
    program passes all tests as given or is not repaired; ``proposers``, what became of the
    candidates of each proposer, empty without any but the edits; ``functions``, what was tried, and
    why, if the caller named no function. The statistics count candidates
    until the first repair; those run for certainty are counted there.
    """

    success: bool
    best_trajectory: EvolvedProgram
    best_score: float
    iterations: list[Iteration]
    total_time: float
    pool_statistics: dict[str, float]
    cases_used: int
    ranked_by: str
    recorded: str
    ended: Ended
    ended_process: str
    left_out: list[str]
    failing: list[str]
    certainty: Certainty | None
    proposers: list[ProposerReport]
    functions: list[str]


@dataclass(kw_only=True, slots=True)
class Search:
    """What a search for a repair has done and found.

    Attributes:
        ended: Why it ended.
        found: The best program that it ran.
        best: The program to return: *found* without the edits that it does not need.
        iterations: Its generations.
        outcomes: Steps that were run, oldest first.
        statistics: What was run until the first repair, without what was run to assess it.
        assessment: How sure *best* is; None if it was not assessed.
        recorded: What was recorded to learn from.
        hidden_pass_rate: Share of the hidden tests that *best* passes, in [0, 1].
    """

    ended: Ended
    found: Evaluation
    best: Evaluation
    iterations: list[Iteration] = field(default_factory=list)
    outcomes: list[StepResult] = field(default_factory=list)
    statistics: dict[str, float] = field(default_factory=dict)
    assessment: Assessment | None = None
    recorded: str = ""
    hidden_pass_rate: float = 0.0

    def count(self, evolution: Evolution) -> None:
        """Set the statistics to what *evolution* has run so far."""
        members = evolution.archive.members
        self.statistics = {
            "trajectories": float(len(members)),
            "evaluations": float(evolution.evaluations),
            **{name: float(count) for name, count in evolution.split.items()},
            "mean_score": sum(member.score for member in members) / len(members),
            "timed_out": float(sum(outcome.child.execution.hung for outcome in self.outcomes)),
        }

    def adopt(self, assessment: Assessment) -> None:
        """Take over what *assessment* chose, and the steps that it ran."""
        self.assessment = assessment
        self.outcomes += assessment.rivals.outcomes
        if assessment.chosen is not self.best:
            self.best = assessment.chosen
            self.found = assessment.rivals.origins[self.best]
        if assessment.contradicted:
            self.ended = "contradicted"


def describe_program(
    search: Search,
    request: EvolutionRequest,
    describer: EditDescriber,
    *,
    agent_name: str,
    problem_description: str,
) -> EvolvedProgram:
    """Return the program that *search* found, as the author of the code in *request* reads it."""
    best = search.best
    after = rewrite(request.code, best.source)
    return EvolvedProgram(
        agent_name=agent_name,
        problem_description=problem_description,
        code_after=after,
        diff=unified_diff(request.code, after, request.path),
        edits=describer.describe(best.edits),
        lineage=describer.lineage(search.found, best, search.outcomes),
        success_score=best.score,
        test_results=list(best.passed),
        hidden_pass_rate=search.hidden_pass_rate,
    )
