from __future__ import annotations

from itertools import islice
from random import Random

from agents.se_darwin.collection import evolve_tasks
from agents.se_darwin.corpus import load_subjects
from agents.se_darwin.features import SPEC
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.settings import SEDarwinSettings
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
    assert collect(sandbox, 3, 60) == collect(sandbox, 3, 60) != collect(sandbox, 4, 60)


def test_a_stop_request_ends_the_stream(sandbox: Sandbox) -> None:
    assert list(evolve_tasks(sandbox, Random(0), SEDarwinSettings(), stop=lambda: True)) == []
