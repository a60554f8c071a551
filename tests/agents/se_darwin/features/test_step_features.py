from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from math import log1p, sqrt

import pytest

from agents.se_darwin.edits import Edit, EditSpace
from agents.se_darwin.features import NUMBERS, SPEC, Step, StepFeatures, observe
from agents.se_darwin.features.statements import FARTHEST
from agents.se_darwin.sandbox import Execution, Output, Sandbox, TestCase
from agents.se_darwin.search.operators import refine, revise
from agents.se_darwin.tasks import RepairTask
from agents.se_darwin.tasks.evaluation import Evaluation
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


def test_the_observation_contains_the_symptoms(root: Evaluation, two_faults: RepairTask) -> None:
    observation = observe(two_faults.space, root)
    assert observation["pass_rate"] == root.score
    assert observation["symptoms"] == [name for name, _ in Counter(root.symptoms).most_common()]
    assert observation["unfinished"] == 0.0


def test_the_line_of_an_exception_and_the_values_of_results_are_seen() -> None:
    space = EditSpace(
        "def last(items):\n    if not items:\n        return 1\n    return items[2]\n", "last"
    )
    outputs = (
        Output(kind="value", text="1", arguments="", lines=frozenset({2, 3})),
        Output(kind="raise", text="IndexError", arguments="", lines=frozenset({2, 4, -4})),
    )
    tests = [TestCase.returning(([],), 0), TestCase.returning(([3],), 3)]
    parent = Evaluation.of(NOTHING, space.source, Execution(outputs=outputs, end="exit"), tests)
    features = StepFeatures(space, parent)
    found = {str(edit): numbers_of(features, edit) for edit in space.edits}
    wrong = found["line 3: constant 1 -> 0"]
    assert (wrong["new_is_wanted"], wrong["old_is_got"], wrong["new_is_got"]) == (1.0, 1.0, 0.0)
    assert (wrong["raising"], wrong["failing_raise"]) == (0.0, 0.0)
    index = found["line 4: constant 2 -> 1"]
    assert index["failing_raise"] == 0.5
    assert index["raising"] == pytest.approx(sqrt(0.5))


def test_name_columns_describe_the_variables(root: Evaluation, two_faults: RepairTask) -> None:
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


def ran(*lines: int) -> Output:
    return Output(kind="value", text="", arguments="", lines=frozenset(lines))


@pytest.fixture
def evaluated(two_faults: RepairTask) -> Evaluation:
    """Two tests pass, two fail, two never end; line 3 is run by all, line 6 by one that fails."""
    outputs = (ran(3), ran(3, 4, 5), ran(3, 4, 5), ran(3, 4, 5, 6), None, None)
    return Evaluation(
        edits=frozenset(two_faults.space.edits[:2]),
        source=two_faults.space.source,
        passed=(True, True, False, False, False, False),
        execution=Execution(outputs=outputs, end="timeout"),
        symptoms=("b", "a", "a", "c", "d"),
    )


def test_the_observation_counts(evaluated: Evaluation, two_faults: RepairTask) -> None:
    assert observe(two_faults.space, evaluated) == {
        "pass_rate": pytest.approx(1 / 3),
        "size": log1p(len(two_faults.space.nodes)),
        "edits_so_far": 2.0,
        "unfinished": pytest.approx(1 / 3),
        "symptoms": ["a", "b", "c", "d"],
    }


def test_every_number_is_what_its_name_says(evaluated: Evaluation, two_faults: RepairTask) -> None:
    space, features = two_faults.space, StepFeatures(two_faults.space, evaluated)
    ochiai = {3: 2 / sqrt(2 * 4), 4: 2 / sqrt(2 * 3), 5: 2 / sqrt(2 * 3), 6: 1 / sqrt(2)}
    failing, passing = {3: 1.0, 4: 1.0, 5: 1.0, 6: 0.5}, {3: 1.0, 4: 0.5, 5: 0.5}
    levels = sorted({ochiai.get(edit.line, 0.0) for edit in space.edits}, reverse=True)
    lines, nodes, kinds = (
        Counter(getattr(edit, name) for edit in space.edits) for name in ("line", "node", "kind")
    )
    assert len(levels) > 2
    for edit in space.edits:
        level, found = ochiai.get(edit.line, 0.0), numbers_of(features, edit)
        above = sum(ochiai.get(other.line, 0.0) > level for other in space.edits)
        expected = {
            "suspiciousness": level,
            "suspiciousness_of_max": level / levels[0],
            "suspiciousness_rank": levels.index(level) / len(levels),
            "more_suspicious": above / len(space.edits),
            "failing_coverage": failing.get(edit.line, 0.0),
            "passing_coverage": passing.get(edit.line, 0.0),
            "depth": len(edit.path),
            "failing_only": float(edit.line in failing and edit.line not in passing),
            "position": (edit.line - space.definition.lineno)
            / (1 + space.source.count("\n") - (space.definition.lineno - 1)),
            "alternatives": log1p(nodes[edit.node]) - log1p(len(space.edits) / len(nodes)),
            "alternatives_of_line": log1p(lines[edit.line]) - log1p(len(space.edits) / len(lines)),
            "kind_share": kinds[edit.kind] / len(space.edits),
            "changed": 1.0,
        }
        assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_the_place_and_the_types_of_an_edit_are_seen() -> None:
    source = "def f(rows, mark='-'):\n    size = len(rows)\n    n = 0\n    for row in rows:\n"
    source += "        n += size\n    print(n)\n    return n\n"
    space = EditSpace(source, "f")
    parent = Evaluation(
        edits=NOTHING,
        source=space.source,
        passed=(False,),
        execution=Execution(outputs=(ran(2, 3, 4, 5, 6, 7),), end="exit"),
        symptoms=("a",),
    )
    features = StepFeatures(space, parent)
    found = {
        (edit.line, edit.new): numbers_of(features, edit)
        for edit in space.edits
        if edit.kind == "variable" and edit.old == "size"
    }
    assert found[5, "n"]["same_type"] == 1.0
    assert found[5, "mark"]["same_type"] == 0.0  # nothing tells the type of the parameter
    assert (found[5, "n"]["loops"], found[5, "n"]["distance"]) == (1.0, 1 / FARTHEST)


def test_where_nothing_failed_nothing_is_suspicious(
    evaluated: Evaluation, two_faults: RepairTask
) -> None:
    fine = replace(evaluated, passed=(True,) * 6)
    numbers = numbers_of(StepFeatures(two_faults.space, fine), two_faults.space.edits[0])
    assert (numbers["suspiciousness"], numbers["suspiciousness_of_max"]) == (0.0, 0.0)


def test_tokens_name_change_place_and_symptoms(
    evaluated: Evaluation, two_faults: RepairTask
) -> None:
    edit = next(edit for edit in two_faults.space.edits if edit.kind == "comparison")
    step = Step(operator="revision", changed=frozenset({edit}), edits=frozenset({edit}))
    tokens = list(StepFeatures(two_faults.space, evaluated).describe(step)["tokens"])  # type: ignore[arg-type]
    role, parent, *further = edit.path
    change = f"comparison {edit.old}>{edit.new}"
    assert tokens == [
        "revision",
        "comparison",
        change,
        f"comparison from {edit.old}",
        f"comparison to {edit.new}",
        f"comparison in {parent}.{role}",
        f"{change} in {parent}.{role}",
        "comparison at If test",
        f"{change} at If test",
        f"comparison to {edit.new} on bool",
        *(f"comparison under {name}" for name in further),
        *(f"comparison | {symptom}" for symptom in ("a", "b", "c")),
        *(f"{change} | {symptom}" for symptom in ("a", "b", "c")),
        *(f"comparison at If test | {symptom}" for symptom in ("a", "b", "c")),
        *(f"at If test | {symptom}" for symptom in ("a", "b", "c")),
        *(f"to {edit.new} | {symptom}" for symptom in ("a", "b", "c")),
    ]


def test_other_names_give_the_same_features(evaluated: Evaluation, two_faults: RepairTask) -> None:
    renamed = two_faults.space.source
    for old, new in (("total", "amount"), ("item", "price"), ("limit", "most"), ("unused", "rest")):
        renamed = re.sub(rf"\b{old}\b", new, renamed)
    spaces = two_faults.space, EditSpace(renamed, "solve")
    described = []
    for space in spaces:
        features = StepFeatures(space, evaluated)
        found = [
            features.describe(Step(operator="revision", changed=frozenset({e}), edits=frozenset()))
            for e in space.edits
            if e.kind in ("variable", "offset", "comparison")
        ]
        described.append(Counter(tuple(each["tokens"]) for each in found))  # type: ignore[arg-type]
    assert described[0] == described[1]


def test_several_edits_are_their_mean_and_all_their_tokens(
    evaluated: Evaluation, two_faults: RepairTask
) -> None:
    features = StepFeatures(two_faults.space, evaluated)
    one, other = two_faults.space.edits[0], two_faults.space.edits[-1]
    both = Step(operator="recombination", changed=frozenset({one, other}), edits=frozenset())
    described = features.describe(both)
    assert described["kind"] == "several"
    numbers = dict(zip(NUMBERS, described["numbers"], strict=True))  # type: ignore[arg-type]
    parts = [numbers_of(features, edit) for edit in (one, other)]
    expected = {name: (parts[0][name] + parts[1][name]) / 2 for name in NUMBERS}
    assert numbers == pytest.approx(expected | {"changed": 2.0})
    tokens = list(described["tokens"])  # type: ignore[arg-type]
    assert len(set(tokens)) == len(tokens)
    assert {one.kind, other.kind} <= set(tokens)
