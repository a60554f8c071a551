import math
import random
from dataclasses import replace

import pytest
import torch
from torch import nn

from infrastructure.agent_contract.transition import Box, Discrete, Text, Transition, TransitionSpec
from infrastructure.trajectories.history import stack_history
from infrastructure.world_model import WorldModel
from infrastructure.world_model.fitting import fit_candidates, prepare_training_data
from infrastructure.world_model.planning import Dynamics, PlanSettings

SPRING_SPEC = TransitionSpec(
    observation={"x": Box()},
    action={"push": Box()},
    targets={"x": Box(delta=True)},
    history=2,
    rollout_steps=10,
)
TASTE_SPEC = TransitionSpec(
    observation={"x": Box(), "taste": Box()},
    action={"push": Box()},
    targets={"x": Box(delta=True), "reward": Box()},
)


class Wrapped(nn.Module):
    """A network of an author's own, which hides its layers."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, inputs):
        return self.inner(inputs)


def _faster(x, speed, push):
    """Next speed of a spring."""
    return 0.7 * speed - 0.2 * x + push


def _swing(groups=40, steps=40):
    """A spring of which the place alone is observed: its speed is hidden."""
    generator, rows = random.Random(0), []
    for number in range(groups):
        x, speed = generator.uniform(-1, 1), generator.uniform(-0.5, 0.5)
        for _ in range(steps):
            push = generator.uniform(-0.2, 0.2)
            after, speed = x + speed, _faster(x, speed, push)
            rows.append(
                Transition(
                    group=f"g{number}",
                    observation={"x": x},
                    action={"push": push},
                    next_observation={"x": after},
                )
            )
            x = after
    return rows


@pytest.fixture(scope="module")
def spring():
    model = WorldModel(SPRING_SPEC, members=2, hidden=32)
    model.fit(_swing(), epochs=20, batch_size=64, device="cpu", precision="fp32")
    return model


def test_a_history_shows_what_one_observation_hides(spring):
    blind = WorldModel(replace(SPRING_SPEC, observation={"x": Box()}, history=1), members=2)
    blind.fit(_swing(), epochs=10, batch_size=64, device="cpu", precision="fp32")
    assert spring.metrics["x.rmse"] < 0.5 * blind.metrics["x.rmse"]
    assert spring.metrics["rollout_error"] < blind.metrics["rollout_error"]
    observed = stack_history(SPRING_SPEC, [{"x": 0.1}, {"x": 0.4}], [{"push": 0.1}])
    [predicted] = spring.predict_batch([observed], [{"push": 0.0}])
    assert predicted.next_state["x"] == pytest.approx(0.4 + _faster(0.1, 0.3, 0.1), abs=0.05)


def test_a_rollout_carries_its_history_along(spring):
    pushes = [0.1, 0.1, -0.2, 0.0, 0.1, -0.1]
    start = stack_history(SPRING_SPEC, [{"x": 0.0}, {"x": 0.2}], [{"push": 0.0}])
    rolled = spring.rollout(start, [{"push": push} for push in pushes], particles=0)
    places, speed = [0.2], _faster(0.0, 0.2, 0.0)
    for push in pushes:
        places.append(places[-1] + speed)
        speed = _faster(places[-2], speed, push)
    assert rolled.mean["x"][0].tolist() == pytest.approx(places, abs=0.1)
    fields = rolled.observation
    assert torch.equal(fields["x[-1]"][..., 1:], fields["x"][..., :-1])
    assert fields["push[-1]"][:, 0].tolist() == [[0.0, *pushes]] * len(rolled.member)


def test_older_steps_move_back_one_by_one():
    spec = replace(SPRING_SPEC, observation={"x": Box()}, history=3)
    model = WorldModel(spec, members=1, hidden=8)
    model.fit(_swing(30), epochs=1, batch_size=64, device="cpu", precision="fp32")
    pushes = [0.1, 0.2, -0.1, 0.0]
    start = stack_history(spec, [{"x": 0.0}], [])
    fields = model.rollout(start, [{"push": push} for push in pushes], particles=0).observation
    assert torch.equal(fields["x[-2]"][..., 2:], fields["x"][..., :-2])
    assert fields["push[-2]"].flatten().tolist() == [0.0, 0.0, *pushes[:3]]


def test_a_custom_network_rolls_out_as_its_layers_do(line):
    fitted = line.fitted_model
    custom = WorldModel.from_fitted(replace(fitted, ensemble=Wrapped(fitted.ensemble)), {})
    pushes = [{"push": 0.3}] * 5
    for particles in (0, 4):
        expected = line.rollout({"x": (0.5, 1.0)}, pushes, particles=particles, seed=3)
        rolled = custom.rollout({"x": (0.5, 1.0)}, pushes, particles=particles, seed=3)
        assert torch.equal(rolled.member, expected.member)
        assert torch.allclose(rolled.observation["x"], expected.observation["x"], atol=1e-4)
        assert torch.allclose(rolled.reward, expected.reward, atol=1e-4)
        assert torch.allclose(rolled.alive, expected.alive, atol=1e-4)


@pytest.fixture(scope="module")
def tasting():
    """The best push is the taste, which never changes within an episode."""
    generator, rows = random.Random(0), []
    for number in range(2000):
        x, taste, push = (generator.uniform(-1, 1) for _ in range(3))
        rows.append(
            Transition(
                group=f"g{number // 20}",
                observation={"x": x, "taste": taste},
                action={"push": push},
                reward=-((push - taste) ** 2),
                next_observation={"x": x * (1 - push**2)},
            )
        )
    model = WorldModel(TASTE_SPEC, members=2, hidden=32)
    model.fit(rows, epochs=25, batch_size=64, device="cpu", precision="fp32")
    return model


def test_a_field_that_nothing_predicts_must_be_held(tasting):
    for held, told in (([], "'taste' is not predicted.*hold"), (["x"], "hold names 'x', which")):
        with pytest.raises(ValueError, match=told):
            tasting.planner(3, PlanSettings(bounds={"push": (-1, 1)}, hold=held))
    with pytest.raises(ValueError, match="'smell', which the observation lacks"):
        Dynamics(tasting.fitted_model, hold=["smell"])


@pytest.mark.parametrize("taste", [-0.6, 0.5])
def test_a_held_field_keeps_its_value(tasting, taste):
    chosen = PlanSettings(bounds={"push": (-1, 1)}, hold=["taste"], iterations=5)
    plan = tasting.plan({"x": 0.0, "taste": taste}, 3, chosen)
    assert [action["push"] for action in plan.actions] == pytest.approx([taste] * 3, abs=0.15)
    imagined = tasting.rollout({"x": 0.0, "taste": taste}, [{"push": 0.5}] * 3, hold=["taste"])
    assert imagined.observation["taste"].unique().tolist() == [taste]
    assert imagined.reward.mean().item() == pytest.approx(-((0.5 - taste) ** 2), abs=0.1)
    with pytest.raises(ValueError, match=r"'taste' is not predicted.*hold"):
        tasting.rollout({"x": 0.0, "taste": taste}, [{"push": 0.5}] * 3)


LAMP_SPEC = TransitionSpec(
    observation={"x": Box(), "heat": Box(), "lamp": Discrete(values=("off", "on"))},
    action={"say": Text()},
    targets={"x": Box(delta=True), "heat": Box(), "lamp": Discrete(values=("off", "on"))},
)


def _lamp(rows=1500):
    """Words switch a lamp; its heat is 3 where it burns, else 1; its state and heat have gaps."""
    generator, made = random.Random(0), []
    for number in range(rows):
        x, lamp = generator.uniform(-1, 1), generator.choice(("off", "on"))
        heat = 3.0 if lamp == "on" else 1.0
        say = generator.choice(("switch it on please", "switch it off now", ""))
        after = {"switch it on please": "on", "switch it off now": "off"}.get(say, lamp)
        before = {"x": x, "heat": heat, "lamp": lamp}
        if number % 4 == 0:
            before |= {"heat": None, "lamp": None}
        made.append(
            Transition(
                group=f"g{number // 10}",
                observation=before,
                action={"say": say},
                next_observation={
                    "x": x + 0.1 * (after == "on"),
                    "heat": 3.0 if after == "on" else 1.0,
                    "lamp": after,
                },
            )
        )
    return made


@pytest.fixture(scope="module")
def lamp():
    model, rows = WorldModel(LAMP_SPEC, members=2, hidden=32), _lamp()
    model.fit(rows, epochs=15, batch_size=64, device="cpu", precision="fp32")
    data = prepare_training_data(LAMP_SPEC, rows)
    candidates = fit_candidates(data, model.fitted_model.ensemble)
    return {name: WorldModel.from_fitted(candidates[name], {}) for name in candidates}


@pytest.mark.parametrize("family", ["linear", "ensemble", "blend"])
@pytest.mark.parametrize("say", ["switch it on please", ""])
@pytest.mark.parametrize("missing", [(), ("heat", "lamp"), ("x",)])
def test_the_first_step_is_that_of_a_prediction(lamp, family, say, missing):
    model = lamp[family]
    start = {
        name: None if name in missing else value
        for name, value in {"x": 0.5, "heat": 3.0, "lamp": "on"}.items()
    }
    rolled = model.rollout(start, [{"say": say}] * 2, particles=0)
    [expected] = model.predict_batch([start], [{"say": say}])
    means = {name: each[0, 1].item() for name, each in rolled.mean.items()}
    for name, mean in means.items():
        if name not in missing or name != "x":
            assert mean == pytest.approx(expected.next_state[name], abs=0.1)
    assert math.isfinite(means["x"])
    assert bool(rolled.in_range.all()) == ("x" not in missing)


def test_a_gap_ends_where_the_model_predicts_the_field(lamp):
    start = {"x": 0.5, "heat": math.nan}
    words = ["switch it on please", "", "switch it off now"]
    rolled = lamp["ensemble"].rollout(start, [{"say": word} for word in words], particles=3)
    heat, label = rolled.observation["heat"], rolled.observation["lamp"]
    assert bool(heat[..., 0].isnan().all())
    assert bool((label[..., 0] == 2).all())
    assert heat[..., 1:].mean((0, 1)).tolist() == pytest.approx([3.0, 3.0, 1.0], abs=0.3)
    assert bool((label[..., 1:] < 2).all())


@pytest.mark.parametrize("start", [{"x": 0.0, "lamp": None}, {"lamp": "on"}])
def test_a_plan_begins_where_values_are_missing(lamp, start):
    """Of lamp and heat, training has gaps; of x it has none."""
    settings = PlanSettings(
        candidates=[{"say": "switch it on please"}, {"say": "switch it off now"}],
        reward=lambda before, action, after: -(after["heat"] - 1.0).square(),
    )
    plan = lamp["ensemble"].plan(start, 2, settings)
    assert [action["say"] for action in plan.actions] == ["switch it off now"] * 2


@pytest.fixture(scope="module")
def sided():
    """A hidden side decides which push pays; training lacks it in a tenth of the rows."""
    generator, rows = random.Random(0), []
    for number in range(400):
        side, push = generator.choice("lllllrrrr"), generator.uniform(-1, 1)
        known = generator.random() > 0.1
        rows.append(
            Transition(
                group=f"g{number // 8}",
                observation={
                    "x": generator.gauss(0, 1),
                    "side": side if known else None,
                    "slope": (1.0 if side == "l" else -2.0) if known else None,
                },
                action={"push": push},
                reward=push if side == "l" else -2 * push,
                next_observation={
                    "side": side,
                    "slope": 1.0 if side == "l" else -2.0,
                },
            )
        )
    sides = Discrete(values=("l", "r"))
    spec = TransitionSpec(
        observation={"x": Box(), "side": sides, "slope": Box()},
        action={"push": Box()},
        targets={"side": sides, "slope": Box(), "reward": Box()},
    )
    model = WorldModel(spec, members=2, hidden=32)
    model.fit(rows, epochs=40, batch_size=32, device="cpu", precision="fp32")
    return model


@pytest.mark.parametrize("candidates", [None, [{"push": 0.1 * n - 1.0} for n in range(21)]])
def test_what_a_gap_leaves_open_is_not_certain_after_a_step(sided, candidates):
    settings = PlanSettings(
        candidates=candidates,
        penalty=1.0,
        hold=("x",),
        reward=lambda before, action, after: (
            action["push"] * torch.where(before["side"] == 0, 1.0, -2.0) * (before["side"] < 2)
        ),
    )
    known, unknown = (
        sided.plan({"x": 0.0, "side": side, "slope": slope}, 3, settings)
        for side, slope in (("l", 1.0), (None, None))
    )
    assert known.expected_return == pytest.approx(3.0, abs=0.2)
    assert known.sd < 0.2
    assert unknown.expected_return < 0.6
    assert all(abs(action["push"]) < 0.3 for action in unknown.actions[1:])


def test_a_number_that_a_gap_leaves_open_is_not_certain_after_a_step(sided):
    settings = PlanSettings(
        bounds={"push": (0.9, 1.0)},
        hold=("x",),
        reward=lambda before, action, after: after["slope"],
    )
    [predicted] = sided.predict_batch([{"x": 0.0, "side": None, "slope": None}], [{"push": 0.95}])
    plan = sided.plan({"x": 0.0, "side": None, "slope": None}, 1, settings)
    assert plan.sd == pytest.approx(predicted.deviations["slope"][0], rel=0.35)
    assert plan.sd > 0.8


def test_a_number_too_large_to_be_used_is_missing(lamp):
    starts = [{"x": 0.5, "heat": heat, "lamp": "on"} for heat in (1e20, None)]
    rolled = lamp["linear"].rollout(starts, [{"say": ""}] * 2, particles=0)
    assert rolled.mean["heat"][0].tolist() == pytest.approx(
        rolled.mean["heat"][1].tolist(), nan_ok=True
    )


def test_earlier_gaps_move_back(spring):
    start = stack_history(SPRING_SPEC, [{"x": None}, {"x": 0.3}], [{"push": 0.1}])
    rolled = spring.rollout(start, [{"push": 0.0}] * 3, particles=0)
    assert start["x[-1]"] is None
    earlier = rolled.observation["x[-1]"][:, 0]
    assert len(set(earlier[:, 0].tolist())) > 1  # each particle has its own
    assert earlier[:, 1].tolist() == pytest.approx([0.3] * len(earlier))
    assert rolled.in_range[0, 0].tolist()[0] is False


def test_weights_of_each_label_count_in_a_rollout():
    """Of a held field, so that the linear model may have them: ``go`` moves x by z or minus z."""
    generator, rows = random.Random(0), []
    for number in range(400):
        x, z, go = generator.gauss(0, 1), generator.gauss(0, 1), generator.choice("ab")
        change = z if go == "b" else -z
        rows.append(
            Transition(
                group=f"g{number // 4}",
                observation={"x": x, "z": z},
                action={"go": go},
                reward=change,
                next_observation={"x": x + change, "won": str(change > 0).lower()},
            )
        )
    answers = Discrete(values=("false", "true"))
    spec = TransitionSpec(
        observation={"x": Box(), "z": Box()},
        action={"go": Discrete(values=("a", "b"))},
        targets={"x": Box(delta=True), "reward": Box(), "won": answers},
        success=("won", "true"),
    )
    model = WorldModel(spec, members=2, hidden=8)
    model.fit(rows, epochs=2, batch_size=64, device="cpu", precision="fp32")
    fitted = model.fitted_model
    assert fitted.linear.crossed is not None
    weights = dict.fromkeys(fitted.codec.heads, (0.3, 0.7))
    model = WorldModel.from_fitted(replace(fitted, weights=weights), {})
    for z, go in ((2.0, "b"), (2.0, "a"), (-2.0, "b")):
        [predicted] = model.predict_batch([{"x": 0.0, "z": z}], [{"go": go}])
        rolled = model.rollout({"x": 0.0, "z": z}, [{"go": go}], particles=0, hold=["z"])
        assert float(rolled.mean["x"][0, 1]) == pytest.approx(predicted.next_state["x"], abs=1e-5)
        mean = float(rolled.reward.mean())
        assert mean == pytest.approx(predicted.expected_improvement, abs=1e-5)
    plans = [
        model.plan({"x": 0.0, "z": z}, 1, PlanSettings(hold=["z"])).actions for z in (2.0, -2.0)
    ]
    assert plans == [[{"go": "b"}], [{"go": "a"}]]
