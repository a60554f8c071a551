"""Labels that training did not have, in starts and actions of rollouts and plans."""

import random
import warnings
from dataclasses import replace

import pytest
import torch

from infrastructure.agent_contract.transition import Box, Discrete, Transition, TransitionSpec
from infrastructure.world_model import WorldModel
from infrastructure.world_model.planning import PlanSettings

KINDS, MOVES = Discrete(values=("l", "m", "r")), Discrete(values=("a", "b", "c"))
SPEC = TransitionSpec(
    observation={"x": Box(), "kind": KINDS, "base": Box()},
    action={"go": MOVES},
    targets={"x": Box(delta=True), "kind": KINDS, "base": Box(delta=True), "reward": Box()},
)
SHIFT = {"l": -1.0, "m": 0.0, "r": 1.0}
START = {"x": 0.0, "kind": "r", "base": 5.0}


def _transitions(undeclared=0.0, gaps=0.0):
    """Kind and move decide the change of x; ``base`` is 5 in every observation."""
    generator, rows = random.Random(0), []
    for number in range(450):
        kind, go, x = generator.choice("llmr"), generator.choice("aab"), generator.gauss(0, 1)
        change, draw = generator.gauss(SHIFT[kind] + (go == "b"), 0.2), generator.random()
        seen = "other" if draw < undeclared else None if draw > 1 - gaps else kind
        rows.append(
            Transition(
                group=f"g{number // 6}",
                observation={"x": x, "kind": seen, "base": 5.0},
                action={"go": go},
                reward=change,
                next_observation={
                    "x": x + change,
                    "kind": kind if generator.random() < 0.8 else generator.choice("lmr"),
                    "base": 5.0 + change,
                },
            )
        )
    return rows


def _walks():
    """Sequences of eight steps, in which kind and x go on."""
    generator, rows = random.Random(0), []
    for group in range(60):
        x, kind = generator.gauss(0, 1), generator.choice("lmr")
        for _ in range(8):
            go, after = generator.choice("ab"), generator.choice("lmr")
            observed = {"x": x, "kind": kind}
            x += SHIFT[kind] + (go == "b")
            rows.append(
                Transition(
                    group=f"g{group}",
                    observation=observed,
                    action={"go": go},
                    next_observation={"x": x, "kind": after},
                )
            )
            kind = after
    return rows


def _fitted(rows, spec=SPEC, epochs=15):
    model = WorldModel(spec, members=2, hidden=16)
    with warnings.catch_warnings(action="ignore"):  # the base is constant
        model.fit(rows, epochs=epochs, batch_size=64, device="cpu", precision="fp32")
    return model


@pytest.fixture(scope="module")
def models():
    """By what else than labels the training data had as the kind."""
    return {
        "labels": _fitted(_transitions()),
        "gaps": _fitted(_transitions(gaps=0.2)),
        "undeclared": _fitted(_transitions(undeclared=0.2)),
    }


@pytest.mark.parametrize("trained", ["labels", "gaps", "undeclared"])
@pytest.mark.parametrize(
    ("start", "go"),
    [
        (START | {"kind": "new"}, "b"),
        (START, "new"),
        (START, "c"),  # declared, and not in the training data
        (START | {"kind": "new"}, "new"),
    ],
)
def test_a_step_from_an_unseen_label_is_that_of_a_prediction(models, trained, start, go):
    model = models[trained]
    [predicted] = model.predict_batch([start], [{"go": go}])
    rolled = model.rollout(start, [{"go": go}] * 2, particles=300)
    assert float(rolled.mean["x"][0, 1]) == pytest.approx(predicted.next_state["x"], abs=0.15)
    sd = float(rolled.sd["x"][0, 1])
    assert 0.85 < sd / predicted.deviations["x"][0] < 1.3
    assert float(rolled.reward[..., 0].mean()) == pytest.approx(
        predicted.expected_improvement, abs=0.15
    )
    kinds = rolled.observation["kind"][:, 0, 1].bincount(minlength=5) / len(rolled.member)
    for kind, share in zip(KINDS.values, kinds.tolist(), strict=False):
        assert share == pytest.approx(predicted.probabilities["kind"][kind], abs=0.06)
    said = [text for text in rolled.warnings[0] if "later steps" not in text]
    assert said == list(predicted.warnings)
    assert bool(rolled.in_range[..., 0].all()) == (not predicted.warnings)


def test_what_training_explains_is_known(models):
    """A gap of the kind is another value than an undeclared label."""
    for trained, kind, position in (("gaps", None, 3), ("undeclared", "new", 4)):
        rolled = models[trained].rollout(START | {"kind": kind}, [{"go": "a"}] * 2, particles=20)
        assert rolled.observation["kind"][..., 0].unique().tolist() == [position]
        assert bool((rolled.observation["kind"][..., 1:] < 3).all())
        ((warning,),) = rolled.warnings
        assert warning.startswith("observation.kind is ")
        assert "draw it independently" in warning
        one = models[trained].rollout(START | {"kind": kind}, [{"go": "a"}])
        assert one.warnings == [[]]
    rolled = models["gaps"].rollout(START | {"kind": "new"}, [{"go": "a"}], particles=50)
    assert {0, 1, 2} <= set(rolled.observation["kind"][..., 0].unique().tolist())


def test_a_number_too_large_is_far_outside_though_gaps_were_learned():
    rows = [
        replace(row, observation=row.observation | ({} if number % 5 else {"x": None}))
        for number, row in enumerate(_transitions())
    ]
    spec = replace(SPEC, targets={**SPEC.targets, "x": Box()})
    model = WorldModel(spec, members=1, hidden=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(rows, epochs=1, device="cpu", precision="fp32")
    rolled = model.rollout(START | {"x": 1e30}, [{"go": "a"}])
    assert not bool(rolled.in_range.any())
    assert "far outside" in rolled.warnings[0][0]
    plan = model.plan(START | {"x": 1e30}, 1)
    assert "far outside" in plan.warnings[0]


def test_only_the_field_of_the_label_is_lost(models):
    starts = [START | {"x": x, "kind": "new"} for x in (-3.0, 3.0)]
    rolled = models["labels"].rollout([*starts, START], [{"go": "a"}], particles=50)
    assert rolled.observation["x"][:, :2, 0].unique(dim=0).tolist() == [[-3.0, 3.0]]
    assert rolled.mean["x"][:2, 1].tolist() == pytest.approx([-3.3, 2.7], abs=0.3)
    assert rolled.observation["kind"][:, 2, 0].unique().tolist() == [2]
    assert [bool(each) for each in rolled.warnings] == [True, True, False]


def test_a_held_label_that_is_unseen_stays_as_it_was_drawn(models):
    spec = replace(SPEC, targets={"x": Box(delta=True), "base": Box(delta=True)})
    model = _fitted(_transitions(), spec, epochs=5)
    rolled = model.rollout(START | {"kind": "new"}, [{"go": "a"}] * 3, particles=10, hold=["kind"])
    kinds = rolled.observation["kind"][:, 0]
    assert len(kinds[:, 0].unique()) == 3
    assert torch.equal(kinds, kinds[:, :1].expand(-1, 4))


def test_a_change_begins_at_a_constant_that_is_missing(models):
    rolled = models["labels"].rollout(START | {"base": None}, [{"go": "b"}], particles=0)
    assert rolled.mean["base"][0, 0] == 5.0
    assert float(rolled.mean["base"][0, 1]) == pytest.approx(7.0, abs=0.3)


@pytest.mark.parametrize("trained", ["labels", "gaps"])
def test_a_plan_from_an_unseen_label_is_uncertain(models, trained):
    known, unknown = (models[trained].plan(START | {"kind": kind}, 2) for kind in ("r", "new"))
    assert unknown.sd > known.sd + 0.5
    assert unknown.expected_return < known.expected_return - 0.5
    assert [text.split()[0] for text in unknown.warnings if "kind" in text] == ["observation.kind"]


def test_a_plan_weighs_an_unseen_action_as_the_average_of_known_ones(models):
    def plan(names, **options):
        chosen = PlanSettings(candidates=[{"go": name} for name in names], **options)
        return models["labels"].plan(START, 2, chosen)

    low, new, high = (plan([name]) for name in ("a", "new", "b"))
    assert low.expected_return + 0.2 < new.expected_return < high.expected_return - 0.2
    assert new.sd > max(low.sd, high.sd) + 0.2
    assert new.warnings == [
        "action.go has a label that did not occur in the training data: it counts as average"
    ]
    assert plan(["new"]) == new
    assert plan(["a", "new"]).actions == [{"go": "new"}] * 2
    assert plan(["a", "new"], penalty=5.0).actions == [{"go": "a"}] * 2
    paid = plan(["new"], reward=lambda _, action, __: (action["go"] == 1).double())
    assert 0.2 < paid.expected_return < 1.2  # a third of the moves are "b"


def test_unseen_labels_of_earlier_steps_are_unknown_too():
    spec = TransitionSpec(
        observation={"x": Box(), "kind": KINDS},
        action={"go": MOVES},
        targets={"x": Box(delta=True), "kind": KINDS},
        history=2,
    )
    model = _fitted(_walks(), spec, epochs=5)
    start = {"x": 0.0, "kind": "r", "x[-1]": 0.0, "kind[-1]": "new", "go[-1]": "a"}
    rolled = model.rollout(start, [{"go": "new"}, {"go": "b"}], particles=20)
    assert len(rolled.observation["kind[-1]"][:, 0, 0].unique()) > 1
    assert rolled.observation["kind[-1]"][:, 0, 1].unique().tolist() == [2]
    moves = rolled.observation["go[-1]"][:, 0]
    assert moves[:, 1].unique().tolist() == [0, 1]  # that as which each particle acted
    assert moves[:, 2].unique().tolist() == [1]
    policy = model.rollout(
        start,
        lambda fields, _: {"go": torch.full(fields["x"].shape, 2)},
        2,
        particles=20,
    )
    assert policy.observation["go[-1]"][:, 0, 1].unique().tolist() == [0, 1]


@pytest.mark.parametrize("label", [["l"], {"l": 1}, 1.5])
def test_a_value_that_cannot_be_a_label_is_refused(models, label):
    with pytest.raises(ValueError, match="'kind' must be a label"):
        models["labels"].rollout(START | {"kind": label}, [{"go": "a"}])
    with pytest.raises(ValueError, match="'go' must be a label"):
        models["labels"].rollout(START, [{"go": label}])


@pytest.mark.parametrize("row", [None, "a", ["a"]])
def test_a_row_that_is_not_a_mapping_is_refused(models, row):
    for rows in ([row], [{"go": "a"}]), ([START], [row]):
        with pytest.raises(ValueError, match="must be a mapping of its fields, got"):
            models["labels"].predict_batch(*rows)
