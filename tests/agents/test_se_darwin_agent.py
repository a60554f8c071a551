from __future__ import annotations

import asyncio
import dataclasses
import time
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from itertools import islice
from pathlib import Path

import psutil
import pytest

from agents.se_darwin.features import SPEC
from agents.se_darwin.prior import PRIOR_FOLDER
from agents.se_darwin.settings import SEDarwinSettings
from agents.se_darwin.solution.recording import MOST_RECORDED
from agents.se_darwin.solution.request import SearchProgress
from agents.se_darwin_agent import SEDarwinAgent
from infrastructure.agent_contract import Agent, RunContext, Transition
from infrastructure.agent_contract.run_context import Budget
from infrastructure.trajectories import ReplayBuffer, part_of
from infrastructure.trajectories.schema import target_problem
from infrastructure.trajectories.split import MIN_HELD_OUT_GROUPS
from infrastructure.world_model import WorldModel
from infrastructure.world_model_agent.prior import ModelInUse, Prior

BROKEN = '''
import math

SCALE = 2

def scaled(x):
    return x * SCALE

def area(radius, holes=()):
    """Area of a disc less its holes, scaled."""
    total = math.pi * (radius * 2)
    for hole in holes:
        total += area(hole)
    return scaled(total)
'''
TESTS = [
    ((1.0,), 6.283185307179586),
    ((2.0,), 25.132741228718345),
    ({"args": (3.0,), "expected": 56.548667764616276}),
    ({"args": (3.0,), "kwargs": {"holes": [1.0]}, "expected": 43.982297150257104}),
    ({"args": ("x",), "raises": "TypeError"}),
]


class Log:
    def __init__(self) -> None:
        self.events: dict[str, dict[str, object]] = {}

    def info(self, event: str, **fields: object) -> None:
        self.events[event] = fields

    def warning(self, event: str, **fields: object) -> None:
        self.events[event] = fields


class Progress:
    def __init__(self) -> None:
        self.reports: list[tuple[int, int | None, Mapping[str, float] | None]] = []

    def __call__(
        self,
        done: int,
        total: int | None = None,
        *,
        unit: str = "",
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        self.reports.append((done, total, metrics))


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    return RunContext(
        run_id="run-1",
        attempt=1,
        agent="se-darwin",
        device="cpu",
        seed=0,
        agent_folder=tmp_path / "agent",
        run_folder=tmp_path / "run",
        budget=Budget(seconds=60.0, transitions=120),
        settings=SEDarwinSettings(evaluations_per_task=16),
        logger=Log(),
        report_progress=Progress(),
    )


def test_the_entry_point_makes_an_agent() -> None:
    [entry] = [e for e in entry_points(group="genesis.agents") if e.name == SEDarwinAgent.name]
    assert isinstance(entry.load()(), Agent)


@pytest.mark.process
def test_collect_keeps_the_budget_of_transitions_and_reports(context: RunContext) -> None:
    transitions = list(SEDarwinAgent().collect(context))
    assert len(transitions) == 120
    assert isinstance(context.report_progress, Progress)
    assert [report[0] for report in context.report_progress.reports] == [50, 100, 120]
    assert isinstance(context.logger, Log)
    assert context.logger.events["ranker_selected"] == {
        "ranker": "prior",
        "reason": "no world model is published yet",
    }
    assert "landlock" in context.logger.events["sandbox_ready"]


@pytest.mark.process
def test_collect_runs_no_more_candidates_than_it_is_set_to(context: RunContext) -> None:
    few = dataclasses.replace(context, settings=SEDarwinSettings(candidates_per_run=9))
    assert len(list(SEDarwinAgent().collect(few))) == 9
    assert isinstance(context.report_progress, Progress)
    assert [report[:2] for report in context.report_progress.reports] == [(9, 9)]


@pytest.mark.process
def test_collect_keeps_the_budget_of_seconds(context: RunContext) -> None:
    short = dataclasses.replace(context, budget=Budget(seconds=0.01, transitions=10**6))
    assert len(list(SEDarwinAgent().collect(short))) < 1000


@pytest.mark.process
def test_another_run_collects_other_transitions(context: RunContext) -> None:
    other = dataclasses.replace(context, run_id="run-2")
    collected = [list(islice(SEDarwinAgent().collect(c), 20)) for c in (context, context, other)]
    assert collected[0] == collected[1] != collected[2]


def enough_to_hold_out(transitions: Iterator[Transition]) -> Iterator[Transition]:
    """250 at least, and enough for a fit: which programs come first depends on the Python."""
    held_out: dict[str, set[str]] = {"calibration": set(), "test": set(), "train": set()}
    for number, transition in enumerate(transitions, start=1):
        yield transition
        held_out[part_of(transition.group)].add(transition.group)
        fewest = min(len(groups) for groups in held_out.values())
        if number >= 250 and fewest >= MIN_HELD_OUT_GROUPS:
            return


@pytest.mark.process
def test_the_published_model_ranks_the_candidates(context: RunContext) -> None:
    agent = SEDarwinAgent()
    model = WorldModel(SPEC)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fields that never vary in so little data
        long = dataclasses.replace(context, budget=Budget(seconds=600.0, transitions=2000))
        model.fit(enough_to_hold_out(agent.collect(long)), epochs=2)
    model.beaten_prior = Prior.open(PRIOR_FOLDER).digest
    model.save(agent.published_folder(context))
    transitions = list(islice(agent.collect(context), 60))
    assert isinstance(context.logger, Log)
    assert context.logger.events["ranker_selected"] == {"ranker": "published", "reason": ""}
    likely = [t for t in transitions if (t.propensity or 0.0) >= 0.8]
    assert len(likely) > 0.6 * len(transitions)  # all but the share of exploration
    request = {"code": BROKEN, "function": "area", "tests": TESTS, "max_evaluations": 16}
    for folder, chooser in (
        (context.agent_folder, "published world model"),
        (
            context.run_folder,
            "the prior that ships with genesis-fp16: no world model is published yet",
        ),
    ):
        answer = asyncio.run(agent.evolve_solution("", request | {"agent_folder": folder}))
        assert answer["ranked_by"] == chooser
        recorded = list(ReplayBuffer(folder / "replay").read())
        searched = sum(each["trajectories"] for each in answer["iterations"])
        compared = answer["certainty"]["candidates"] if answer["success"] else 0
        assert min(searched + compared, MOST_RECORDED) <= len(recorded) <= searched + compared
        assert {transition.group for transition in recorded} == {"program.area"}
        assert all(target_problem(SPEC, transition) is None for transition in recorded)


@pytest.mark.process
def test_a_prior_that_cannot_be_used_is_named(context: RunContext, tmp_path: Path) -> None:
    agent = SEDarwinAgent()
    agent.prior_folder = tmp_path / "lost"
    list(islice(agent.collect(context), 1))
    assert isinstance(context.logger, Log)
    selected = context.logger.events["ranker_selected"]
    assert selected["ranker"] == "suspicion"
    assert str(tmp_path / "lost") in str(selected["reason"])
    request = {"code": BROKEN, "function": "area", "tests": TESTS, "max_evaluations": 1}
    answer = asyncio.run(agent.evolve_solution("", request))
    assert answer["ranked_by"].startswith("suspicion: the prior")


@pytest.mark.process
def test_evolve_solution_repairs_the_callers_function() -> None:
    agent = SEDarwinAgent("qa")
    result = asyncio.run(
        agent.evolve_solution(
            "the area of a disc",
            {
                "code": BROKEN,
                "function": "area",
                "tests": TESTS,
                "hidden_tests": [((0.5,), 1.5707963267948966)],
                "max_evaluations": 3000,
            },
        )
    )
    best = result["best_trajectory"]
    assert result["success"]
    assert result["best_score"] == best["success_score"] == best["hidden_pass_rate"] == 1.0
    assert all(best["test_results"])
    assert "+    total = math.pi * (radius ** 2)" in best["diff"]
    assert "+        total -= area(hole)" in best["diff"]
    assert len(best["edits"]) == 2
    assert best["lineage"][-1].endswith("-> 1.00)")
    assert (best["agent_name"], best["problem_description"]) == ("qa", "the area of a disc")
    assert result["cases_used"] == len(TESTS)
    run = sum(iteration["trajectories"] for iteration in result["iterations"])
    assert 0 < run <= result["pool_statistics"]["evaluations"]


@pytest.mark.process
def test_evolve_solution_does_not_claim_what_it_cannot_do() -> None:
    request = {
        "code": "def solve(x):\n    return 0",
        "function": "solve",
        "tests": [((2,), 4), ((3,), 9), ((4,), 16), ((5,), 25)],
        "max_evaluations": 60,
    }
    result = asyncio.run(SEDarwinAgent().evolve_solution("square", request))
    assert not result["success"]
    assert result["best_score"] < 1.0
    assert result["pool_statistics"]["evaluations"] <= 60


SQUARE = {
    "code": "def solve(x):\n    return x + 0 - 1",
    "function": "solve",
    "tests": [((2,), "never"), ((3,), 9)],
    "max_evaluations": 10_000,
}


@pytest.mark.process
@pytest.mark.parametrize(
    ("limit", "ended"),
    [
        ({"max_evaluations": 8}, "evaluations"),
        ({"stop": lambda: True}, "stopped"),
        ({"code": "def solve():\n    return None"}, "exhausted"),
        ({"tests": [((2,), 1)]}, "success"),
    ],
)
def test_a_search_says_why_it_ended(limit: dict[str, object], ended: str) -> None:
    answer = asyncio.run(SEDarwinAgent().evolve_solution("", SQUARE | limit))
    assert answer["ended"] == ended
    assert answer["success"] == (ended == "success")


class WaitsForTheSandbox(SEDarwinAgent):
    """Gives its world model only once the sandbox is open."""

    def __init__(self) -> None:
        super().__init__()
        self._children_before = set(psutil.Process().children())

    def model_in_use(self, published: Path | None) -> ModelInUse:
        while not self._children_before < set(psutil.Process().children()):
            time.sleep(0.01)
        return super().model_in_use(published)


@pytest.mark.process
@pytest.mark.timeout(60)
def test_the_world_model_is_loaded_while_the_program_runs() -> None:
    limited = SQUARE | {"max_evaluations": 2}
    answer = asyncio.run(WaitsForTheSandbox().evolve_solution("", limited))
    assert answer["ended"] == "evaluations"
    assert "the prior" in answer["ranked_by"]


@pytest.mark.process
def test_a_search_ends_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, late = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock() + late[0])
    limit = {"max_seconds": 600.0, "stop": lambda: late.append(late.pop() + 600.0)}
    answer = asyncio.run(SEDarwinAgent().evolve_solution("", SQUARE | limit))
    assert (answer["ended"], answer["success"]) == ("seconds", False)
    assert late == [600.0], "the search was asked once, after the runs before it"


@pytest.mark.process
def test_the_time_for_a_repair_limits_the_runs_before_the_first_candidate() -> None:
    context = {
        "code": "import time\ndef solve(x):\n    time.sleep(60)\n    return x",
        "function": "solve",
        "tests": [((2,), 1)],
        "timeout_seconds": 60.0,
        "max_seconds": 1.5,
    }
    with pytest.raises(ValueError, match=r"1\.5 s \(--seconds"):
        asyncio.run(SEDarwinAgent().evolve_solution("", context))


@pytest.mark.process
@pytest.mark.parametrize("docstring", [True, False])
def test_a_repair_against_the_docstring_is_not_claimed(docstring: bool) -> None:
    code = 'def double(x):\n    """\n    >>> double(3)\n    7\n    """\n    return x\n'
    tests = "from program import double\ndef test_a():\n    assert double(2) == 4\n"
    context = {
        "code": code,
        "function": "double",
        "test_code": tests,
        "docstring": docstring,
        "max_seconds": 10.0,
    }
    result = asyncio.run(SEDarwinAgent().evolve_solution("x", context))
    certainty = result["certainty"]
    assert certainty is not None
    assert result["best_trajectory"]["test_results"] == [True]
    assert result["success"] is not docstring
    assert result["ended"] == ("contradicted" if docstring else "success")
    assert certainty["contradicted"] == docstring
    assert ("double(3)" in certainty["question"]) == docstring


@pytest.mark.process
def test_the_caller_is_told_how_far_the_look_for_other_repairs_is() -> None:
    seen: list[SearchProgress] = []
    request = {"code": BROKEN, "function": "area", "tests": TESTS, "on_progress": seen.append}
    answer = asyncio.run(SEDarwinAgent().evolve_solution("", request))
    assert answer["success"]
    assert seen[-1].passed == seen[-1].checks
    assert seen[-1].evaluations > answer["pool_statistics"]["evaluations"]
    assert 0.0 <= seen[-1].seconds_left <= 20.0


@pytest.mark.process
def test_the_caller_is_told_how_far_the_search_is() -> None:
    seen: list[SearchProgress] = []
    request = SQUARE | {"max_evaluations": 16, "ranker": "random", "on_progress": seen.append}
    answer = asyncio.run(SEDarwinAgent().evolve_solution("", request))
    assert answer["ranked_by"] == "chance"
    assert [each.evaluations for each in seen][-1] == 16
    assert {each.checks for each in seen} == {2}
    assert all(each.seconds_left >= 0.0 for each in seen)


def test_evolve_solution_names_missing_fields() -> None:
    with pytest.raises(ValueError, match=r"(?s)code.*function"):
        asyncio.run(SEDarwinAgent().evolve_solution("nothing given"))


@pytest.mark.parametrize("wrong", [{"success_threshold": 0.0}, {"max_iterations": 0}])
def test_wrong_arguments_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="success_threshold"):
        SEDarwinAgent(**wrong)
