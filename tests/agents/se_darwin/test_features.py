from __future__ import annotations

import pytest

from agents.se_darwin.edits import Edit
from agents.se_darwin.evaluation import Evaluation
from agents.se_darwin.features import NUMBERS, SPEC, Step, StepFeatures, observe
from agents.se_darwin.operators import refine, revise
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.tasks import RepairTask
from infrastructure.trajectories.schema import input_problem

NOTHING: frozenset[Edit] = frozenset()


@pytest.fixture
def root(sandbox: Sandbox, two_faults: RepairTask) -> Evaluation:
    [root] = two_faults.evaluate(sandbox, [(NOTHING, two_faults.space.source)], coverage=True)
    return root


def numbers_of(features: StepFeatures, edit: Edit) -> dict[str, float]:
    step = Step(operator="revision", changed=frozenset({edit}), edits=frozenset({edit}))
    return dict(zip(NUMBERS, features.describe(step)["numbers"], strict=True))  # type: ignore[arg-type]


def test_every_step_meets_the_spec(root: Evaluation, two_faults: RepairTask) -> None:
    features = StepFeatures(two_faults.space, root)
    observation = observe(two_faults.space, root)
    edits = frozenset(two_faults.space.edits[::15])
    for step in (*revise(two_faults.space, NOTHING), *refine(edits)):
        assert input_problem(SPEC, observation, features.describe(step)) is None


def test_the_observation_tells_how_the_program_fails(
    root: Evaluation, two_faults: RepairTask
) -> None:
    observation = observe(two_faults.space, root)
    assert observation["pass_rate"] == root.score
    assert observation["symptoms"] == list(dict.fromkeys(root.symptoms))
    assert observation["unfinished"] == 0.0


def test_suspicion_is_that_of_the_edited_line(root: Evaluation, two_faults: RepairTask) -> None:
    features = StepFeatures(two_faults.space, root)
    for edit in two_faults.space.edits:
        assert numbers_of(features, edit)["suspicion"] == features.suspicion(edit.line)


def test_name_columns_tell_what_the_variables_do(root: Evaluation, two_faults: RepairTask) -> None:
    features = StepFeatures(two_faults.space, root)
    [edit] = [
        edit
        for edit in two_faults.space.edits
        if (edit.kind, edit.old, edit.new) == ("variable", "item", "total") and edit.line == 5
    ]
    numbers = numbers_of(features, edit)
    assert numbers["new_is_assigned_there"] == 1.0
    assert numbers["new_is_unread"] == 0.0
    assert numbers["old_reads"] > 0.0


def test_no_outcome_is_in_the_input(root: Evaluation, two_faults: RepairTask) -> None:
    """A step is described before it is run: its fields depend on parent and edit alone."""
    features = StepFeatures(two_faults.space, root)
    steps = revise(two_faults.space, NOTHING)
    assert [features.describe(step) for step in steps] == [
        StepFeatures(two_faults.space, root).describe(step) for step in steps
    ]
    assert not set(SPEC.targets) & (set(SPEC.observation) | set(SPEC.action))
