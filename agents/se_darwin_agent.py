"""SE-Darwin: repairs programs by evolution; learns from every candidate which to run first."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

from pydantic import BaseModel

from agents.se_darwin.certainty import Assessor, describe_certainty
from agents.se_darwin.collection import evolve_tasks, open_corpus_sandbox
from agents.se_darwin.features import SPEC
from agents.se_darwin.prior import PRIOR_FOLDER
from agents.se_darwin.proposals import Proposals, load_proposers
from agents.se_darwin.result import (
    Ended,
    EvolutionResult,
    Iteration,
    Search,
    describe_program,
)
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.sandbox.server_process import TimeUpError
from agents.se_darwin.search.evolution import Evolution, StepResult, root_of
from agents.se_darwin.search.policy import Policy
from agents.se_darwin.search.ranker import CombinedRanker, RandomRanker, Ranker, SuspicionRanker
from agents.se_darwin.settings import SEDarwinSettings
from agents.se_darwin.solution.evolved_program import EditDescriber
from agents.se_darwin.solution.recording import Recording
from agents.se_darwin.solution.request import EvolutionRequest, SearchProgress
from agents.se_darwin.tasks import RepairTask
from agents.se_darwin.tasks.evaluation import Evaluation
from agents.se_darwin.whole_file import WholeFile
from infrastructure.agent_contract import RunContext, Transition
from infrastructure.agent_contract.proposer import Proposer
from infrastructure.agent_contract.transition import TransitionSpec
from infrastructure.world_model_agent import WorldModelAgent

REPORT_EVERY = 50
_SOURCES = {
    "published": "published world model",
    "prior": "the prior that ships with genesis-fp16",
    "none": "suspicion",
}
ASSESSMENT_SECONDS = 20.0
"""Most seconds in which `evolve_solution` looks for repairs other than the first one."""


class SEDarwinAgent(WorldModelAgent):
    """Repairs programs by evolution; a world model that predicts the outcome of edits ranks them.

    Args:
        agent_name: Name of the agent that it works for; stored in the trajectories it returns.
        trajectories_per_iteration: Candidates per generation of `evolve_solution`; two run at the
            same time.
        max_iterations: Maximum number of generations of `evolve_solution`; None if only its budget
            of evaluations limits it.
        timeout_per_trajectory: Seconds that the caller's program may take for all its tests. A
            candidate is killed after a multiple of what the program takes, at most twice this.
        success_threshold: Share of passed tests at which `evolve_solution` stops, in (0, 1].
        world_model: Ranker of the candidates of `evolve_solution`; None for the model in use: the
            published one of its *agent_folder* or the prior that ships with the package.
        proposers: Proposers by name that write candidates for every call of `evolve_solution`,
            besides the edits and those that the call names.
    """

    name = "se-darwin"
    prior_folder = PRIOR_FOLDER
    training_passes = 400  # many passes suit a first run's little data: the best epoch is kept

    def __init__(  # noqa: PLR0913 - all but the name are options
        self,
        agent_name: str = "se-darwin",
        *,
        trajectories_per_iteration: int = 2,
        max_iterations: int | None = None,
        timeout_per_trajectory: float = 5.0,
        success_threshold: float = 1.0,
        world_model: Ranker | None = None,
        proposers: Mapping[str, Proposer] | None = None,
    ) -> None:
        if not 0.0 < success_threshold <= 1.0 or (
            max_iterations is not None and max_iterations < 1
        ):
            raise ValueError(
                f"success_threshold must lie in (0, 1] and max_iterations above 0, got "
                f"{success_threshold} and {max_iterations}"
            )
        self.agent_name = agent_name
        self._world_model, self._batch = world_model, trajectories_per_iteration
        self._max_iterations = max_iterations
        self._timeout_seconds = timeout_per_trajectory
        self._success_threshold = success_threshold
        self._proposers = dict(proposers or {})

    def spec(self) -> TransitionSpec:
        """See `agents.se_darwin.features`."""
        return SPEC

    def settings_model(self) -> type[BaseModel]:
        """See `SEDarwinSettings`."""
        return SEDarwinSettings

    def collect(self, context: RunContext) -> Iterator[Transition]:
        """Repair broken standard-library functions until enough candidates ran or time is up.

        The world model in use ranks the candidates: the published one if it has beaten the prior
        that ships with the package, else the prior. The same seed and run id give the same
        transitions, unless the time budget ends them earlier.

        Raises:
            SandboxUnavailableError: This host cannot isolate candidates; none was run.
        """
        settings = context.settings
        if not isinstance(settings, SEDarwinSettings):
            settings = SEDarwinSettings()
        started = time.monotonic()
        limit = min(context.budget.transitions, settings.candidates_per_run)
        chosen = self.model_in_use(self.published_folder(context))
        with open_corpus_sandbox(settings.parallel_candidates) as sandbox:
            context.logger.info("sandbox_ready", **sandbox.layers)
            ranker = "suspicion" if chosen.source == "none" else chosen.source
            context.logger.info("ranker_selected", ranker=ranker, reason=chosen.reason)
            transitions = evolve_tasks(
                sandbox,
                Random(f"{context.seed}/{context.run_id}"),
                settings,
                ranker=chosen.model,
                stop=lambda: time.monotonic() - started > context.budget.seconds,
            )
            fixed = 0
            for done, transition in enumerate(transitions, 1):
                fixed += transition.terminated
                yield transition
                if done % REPORT_EVERY == 0 or done == limit:
                    context.report_progress(
                        done,
                        limit,
                        unit="candidates",
                        metrics={"repaired": float(fixed)},
                    )
                if done >= limit:
                    return

    async def evolve_solution(
        self, problem_description: str, context: Mapping[str, object] | None = None
    ) -> EvolutionResult:
        """Repair the caller's own function so that it passes the caller's own tests.

        Args:
            problem_description: Description that is copied to the result; the tests are the
                specification.
            context: Fields of `EvolutionRequest`; ``code``, ``function`` and tests are required.
                With an ``agent_folder``, the agent learns from the candidates.

        Raises:
            EvolutionRequestError: *context* lacks a field or has an invalid one; the message names
                it and shows a call.
            ValueError: The tests cannot be used.
            SandboxUnavailableError: This host cannot isolate candidates; none was run.
        """
        request = EvolutionRequest.from_context(context)
        proposers = self._proposers | load_proposers(request.proposers)
        if request.function:
            return await self._repair(problem_description, request, proposers)
        timeout = request.timeout_seconds or self._timeout_seconds
        return await WholeFile(
            request, timeout, lambda part: self._repair(problem_description, part, proposers)
        ).result()

    async def _repair(
        self,
        problem_description: str,
        request: EvolutionRequest,
        proposers: Mapping[str, Proposer],
    ) -> EvolutionResult:
        """Repair the function of *request*."""
        proposals = self._proposals(problem_description, request, proposers)
        started = time.monotonic()
        # Torch is imported and a world model read while the program runs with its tests.
        ranking = asyncio.create_task(asyncio.to_thread(self._ranker_for, request))
        try:
            task, search, ranked_by = await self._find_repair(request, proposals, started, ranking)
        finally:
            await asyncio.to_thread(proposals.close)
            ranking.cancel()  # its result is of no use if the tests are refused
        best, assessment = search.best, search.assessment
        describer = EditDescriber(request.code, task.space)
        return EvolutionResult(
            success=self._is_success(best) and search.ended != "contradicted",
            best_trajectory=describe_program(
                search,
                request,
                describer,
                agent_name=self.agent_name,
                problem_description=problem_description,
            ),
            best_score=best.score,
            iterations=search.iterations,
            total_time=time.monotonic() - started,
            pool_statistics={
                **search.statistics,
                "candidate_edits": float(len(task.space.edits)),
                "timeout_seconds": task.limits.wall_seconds if task.limits else math.inf,
            },
            cases_used=len(task.tests),
            ranked_by=ranked_by,
            recorded=search.recorded,
            ended=search.ended,
            ended_process=_ended_process(task),
            left_out=list(task.suite.left_out) if task.suite else [],
            failing=[
                name
                for name, passed in zip(task.check_names, best.passed, strict=True)
                if not passed
            ],
            certainty=describe_certainty(assessment, describer, request) if assessment else None,
            proposers=proposals.report(),
            functions=[],
        )

    async def preview_proposals(
        self, problem_description: str, context: Mapping[str, object] | None = None
    ) -> dict[str, str]:
        """Return what each proposer of `evolve_solution` would send first, by name; send nothing.

        The given program runs with its tests in the sandbox, since a prompt tells what it fails.
        The arguments and errors are those of `evolve_solution`.
        """
        request = EvolutionRequest.from_context(context)
        proposers = self._proposers | load_proposers(request.proposers)

        def preview() -> dict[str, str]:
            ends, given = time.monotonic() + (request.max_seconds or math.inf), request
            if not given.function:
                timeout = request.timeout_seconds or self._timeout_seconds
                found = request.localize(timeout)
                found.require_failures()
                given = request.model_copy(update={"function": found.functions[0].name})
            proposals = self._proposals(problem_description, given, proposers)
            with given.sandbox() as sandbox:
                task = self._run_given(given, sandbox, ends)
                return proposals.preview(task, root_of(task, sandbox))

        return await asyncio.to_thread(preview)

    def _proposals(
        self,
        problem_description: str,
        request: EvolutionRequest,
        proposers: Mapping[str, Proposer],
    ) -> Proposals:
        return Proposals(
            proposers,
            code=request.code,
            description=problem_description,
            tests=request.test_code,
            most=request.max_proposals,
        )

    def _ranker_for(self, request: EvolutionRequest) -> tuple[Ranker, str]:
        """Return the ranker, and what it is: a world model, suspicion and why, or chance."""
        if request.ranker == "random":
            return RandomRanker(), "chance"
        if request.ranker == "suspicion":
            return SuspicionRanker(), "suspicion"
        if self._world_model is not None:
            return CombinedRanker(self._world_model), "world model given"
        folder = request.agent_folder
        chosen = self.model_in_use(folder / "published" if folder else None)
        reason = f": {chosen.reason}" if chosen.reason else ""
        ranker = CombinedRanker(chosen.model) if chosen.model else SuspicionRanker()
        return ranker, f"{_SOURCES[chosen.source]}{reason}"

    def _run_given(self, request: EvolutionRequest, sandbox: Sandbox, ends: float) -> RepairTask:
        """Run the given program with its tests; return the task.

        Raises:
            ValueError: The tests cannot be used, or have not ended when the time is up.
        """
        try:
            with sandbox.until(ends):
                return request.task(sandbox, request.timeout_seconds or self._timeout_seconds)
        except TimeUpError:
            raise ValueError(
                f"the time of {request.max_seconds:g} s (--seconds, max_seconds) was up before "
                "the first candidate: it was spent on the tests of the program as given, which "
                "run several times. Give more time, or select fewer tests (-k, test_keyword)"
            ) from None

    async def _find_repair(
        self,
        request: EvolutionRequest,
        proposals: Proposals,
        started: float,
        ranking: asyncio.Task[tuple[Ranker, str]],
    ) -> tuple[RepairTask, Search, str]:
        """Search for a repair in the sandbox, minimise it, and compare it with others."""
        with await asyncio.to_thread(request.sandbox) as sandbox:
            ends = started + (request.max_seconds or math.inf)
            task = await asyncio.to_thread(self._run_given, request, sandbox, ends)
            ranker, ranked_by = await ranking
            policy = Policy(
                ranker=ranker, batch=self._batch, weighs_effects=request.ranker == "model"
            )
            evolution = Evolution(
                task, sandbox, Random(request.seed), policy=policy, proposals=proposals
            )
            recording = Recording(request.agent_folder if request.record else None)
            with recording:  # closes the buffer even if the search fails
                search = await asyncio.to_thread(
                    self._search,
                    evolution,
                    request,
                    started,
                    lambda outcomes: recording.add(task, outcomes, sandbox),
                )
                if self._is_success(search.found):
                    search.best = await asyncio.to_thread(evolution.minimise, search.found)
                search.count(evolution)
                if search.best.fixed and search.best.edits:
                    seconds = _assessment_seconds(request, started)
                    assessor = Assessor(
                        task=task,
                        sandbox=sandbox,
                        ranker=ranker,
                        seed=request.seed,
                        seconds=seconds,
                        stop=_reporting_stop(evolution, request, time.monotonic() + seconds),
                        uses_docstring=request.docstring,
                    )
                    assessment = await asyncio.to_thread(assessor.assess, evolution, search.best)
                    recording.add(task, assessment.rivals.outcomes, sandbox)
                    search.adopt(assessment)
            search.recorded = recording.summary
            search.hidden_pass_rate = await asyncio.to_thread(
                task.hidden_pass_rate, sandbox, search.best.source
            )
        return task, search, ranked_by

    def _is_success(self, evaluation: Evaluation) -> bool:
        return evaluation.score >= self._success_threshold

    def _search(
        self,
        evolution: Evolution,
        request: EvolutionRequest,
        started: float,
        record: Callable[[Sequence[StepResult]], None],
    ) -> Search:
        """Run generations until a program is good enough or a limit is reached."""
        iterations: list[Iteration] = []
        outcomes: list[StepResult] = []
        while True:
            began = time.monotonic()
            seconds_left = started + (request.max_seconds or math.inf) - began
            ended = self._reason_to_end(evolution, request, len(iterations), seconds_left)
            remaining = request.max_evaluations - evolution.evaluations
            ran = [] if ended else evolution.run_generation(remaining, seconds=seconds_left)
            if not ran and not ended and evolution.awaits_proposals:
                continue
            if not ran:
                is_late = time.monotonic() - began >= seconds_left
                return Search(
                    ended=ended or ("seconds" if is_late else "exhausted"),
                    found=evolution.archive.best,
                    best=evolution.archive.best,
                    iterations=iterations,
                    outcomes=outcomes,
                )
            outcomes += ran
            record(ran)
            now = time.monotonic()
            iterations.append(
                Iteration(
                    generation=len(iterations) + 1,
                    trajectories=len(ran),
                    successful=sum(outcome.child.fixed for outcome in ran),
                    best_score=evolution.archive.best.score,
                    time=now - began,
                )
            )
            if request.on_progress is not None:
                request.on_progress(_progress(evolution, request, now - started))

    def _reason_to_end(
        self,
        evolution: Evolution,
        request: EvolutionRequest,
        generations: int,
        seconds_left: float,
    ) -> Ended | None:
        if self._is_success(evolution.archive.best):
            return "success"
        if evolution.evaluations >= request.max_evaluations:
            return "evaluations"
        if seconds_left <= 0.0:
            return "seconds"
        if generations >= (self._max_iterations or math.inf):
            return "iterations"
        return "stopped" if request.stop is not None and request.stop() else None


def _ended_process(task: RepairTask) -> str:
    """Name of the check in which the given program's process ended; empty if in none."""
    number = task.given.execution.lost_at if task.given else None
    return "" if number is None else task.check_names[number]


def _assessment_seconds(request: EvolutionRequest, started: float) -> float:
    """Most seconds of the assessment: its own limit, or what is left of the request's time."""
    left = started + (request.max_seconds or math.inf) - time.monotonic()
    return max(0.0, min(ASSESSMENT_SECONDS, left))


def _reporting_stop(
    evolution: Evolution, request: EvolutionRequest, ends: float
) -> Callable[[], bool]:
    """Return the request's stop, which also reports the progress of what *ends* at that time."""

    def stop() -> bool:
        if request.on_progress is not None:
            left = max(0.0, ends - time.monotonic())
            request.on_progress(replace(_progress(evolution, request, 0.0), seconds_left=left))
        return request.stop is not None and request.stop()

    return stop


def _progress(evolution: Evolution, request: EvolutionRequest, seconds: float) -> SearchProgress:
    best, done = evolution.archive.best, max(1, evolution.evaluations)
    by_evaluations = (request.max_evaluations - evolution.evaluations) * seconds / done
    by_seconds = (request.max_seconds or math.inf) - seconds
    return SearchProgress(
        evaluations=evolution.evaluations,
        max_evaluations=request.max_evaluations,
        passed=sum(best.passed),
        checks=len(best.passed),
        seconds_left=max(0.0, min(by_evaluations, by_seconds)),
    )
