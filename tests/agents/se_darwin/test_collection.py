from __future__ import annotations

from itertools import islice
from random import Random

from agents.se_darwin.collection import (
    TaskStream,
    evolve_tasks,
    steps_at_fault,
    survey_tasks,
    undoing_steps,
)
from agents.se_darwin.corpus import load_subjects
from agents.se_darwin.faults.draw import FAULT_KINDS
from agents.se_darwin.features import SPEC
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.search.operators import revise
from agents.se_darwin.settings import SEDarwinSettings
from agents.se_darwin.tasks import RepairTask
from infrastructure.agent_contract import Transition
from infrastructure.trajectories.schema import input_problem, target_problem

SUBJECTS = load_subjects()[::10]


def collect(sandbox: Sandbox, seed: int, count: int) -> list[Transition]:
    transitions = evolve_tasks(
        sandbox, Random(seed), SEDarwinSettings(evaluations_per_task=16), subjects=SUBJECTS
    )
    return list(islice(transitions, count))


def test_transitions_meet_the_spec_and_are_spread(sandbox: Sandbox) -> None:
    transitions = collect(sandbox, 0, 200)
    for transition in transitions:
        assert input_problem(SPEC, transition.observation, transition.action) is None
        assert target_problem(SPEC, transition) is None
        assert transition.propensity is not None
        assert transition.info["module"] == transition.group.rpartition(".")[0]
    assert len({transition.group for transition in transitions}) >= 8
    assert {transition.next_observation["outcome"] for transition in transitions} >= {
        "worse",
        "same",
        "better",
    }


def test_the_same_seed_gives_the_same_transitions(sandbox: Sandbox) -> None:
    assert collect(sandbox, 3, 30) == collect(sandbox, 3, 30) != collect(sandbox, 4, 30)


def test_a_stop_request_ends_the_stream(sandbox: Sandbox) -> None:
    assert list(evolve_tasks(sandbox, Random(0), SEDarwinSettings(), stop=lambda: True)) == []


def test_a_survey_shows_a_repair_of_every_fault_that_an_edit_undoes(sandbox: Sandbox) -> None:
    settings = SEDarwinSettings(wide_fault_share=0.0, two_edit_share=0.0, few_tests_share=1.0)
    surveyed = survey_tasks(sandbox, Random(1), settings, candidates=5, subjects=SUBJECTS[:6])
    transitions = list(islice(surveyed, 40))
    undone = [each for each in transitions if each.propensity == 1.0]
    assert len(undone) >= 4
    assert len(undone) > len({id(each.observation) for each in undone}), "several for a fault"
    assert all(each.next_observation["outcome"] == "fixed" for each in undone)
    for transition in transitions:
        assert input_problem(SPEC, transition.observation, transition.action) is None
        assert target_problem(SPEC, transition) is None
        assert transition.propensity is not None


def test_no_step_that_undoes_a_fault_is_overlooked(sandbox: Sandbox) -> None:
    stream = TaskStream(sandbox, Random(5), SEDarwinSettings(), subjects=SUBJECTS[:6])
    found = 0
    for task in islice(stream, 12):
        steps = revise(task.space, frozenset())
        undoing = [step for step in steps if task.space.program(step.edits) == task.original]
        assert undoing_steps(task, steps_at_fault(task, steps)) == undoing, task.fault
        found += bool(undoing)
    assert found >= 2


def test_settings_choose_faults_and_number_of_tests(sandbox: Sandbox) -> None:
    def draw(**shares: float) -> list[RepairTask]:
        stream = TaskStream(sandbox, Random(0), SEDarwinSettings(**shares), subjects=SUBJECTS[:6])
        return list(islice(stream, 5))

    own = draw(wide_fault_share=0.0, few_tests_share=0.0)
    assert all("->" in task.fault and len(task.tests) > 10 for task in own)
    wide = draw(wide_fault_share=1.0, few_tests_share=1.0)
    assert all(task.fault in FAULT_KINDS or ";" in task.fault for task in wide)
    assert all(3 <= len(task.tests) <= 10 < len(task.hidden_tests) for task in wide)
