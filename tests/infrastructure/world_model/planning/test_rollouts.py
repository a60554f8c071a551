import math
from dataclasses import replace

import pytest
import torch

from infrastructure.world_model import WorldModel
from infrastructure.world_model.planning import PlanSettings

PUSHES = [{"push": 0.1}] * 10


@pytest.mark.parametrize("shares", [(1.0, 0.0), (0.6, 0.4), (0.5, 0.2), (0.0, 0.9)])
def test_a_step_is_the_prediction(line, shares):
    """Shares of ensemble and linear model; the base rate has the rest."""
    start, action, fitted = {"x": (0.5, 0.3)}, {"push": 0.2}, line.fitted_model
    weights = dict.fromkeys(fitted.codec.heads, shares)
    model = WorldModel.from_fitted(replace(fitted, weights=weights), {})
    [predicted] = model.predict_batch([start], [action])
    rolled = model.rollout(start, [action], particles=0)
    assert rolled.mean["x"][0, 1].tolist() == pytest.approx(predicted.next_state["x"], abs=1e-5)
    assert float(rolled.reward.mean()) == pytest.approx(predicted.expected_improvement, abs=1e-5)


def test_a_linear_system_follows_its_closed_form(line):
    rolled = line.rollout([{"x": (0.0, 0.0)}, {"x": (-1.0, 0.5)}], PUSHES, particles=0)
    for row, (place, speed) in enumerate([(0.0, 0.0), (-1.0, 0.5)]):
        end = (place + 0.2 * (10 * speed + 0.1 * 45), speed + 1.0)
        assert rolled.mean["x"][row, -1].tolist() == pytest.approx(end, abs=0.15)


def test_uncertainty_grows_and_members_stay_apart(line):
    rolled = line.rollout({"x": (0.0, 0.0)}, PUSHES, particles=20)
    assert rolled.observation["x"].shape == (60, 1, 11, 2)
    sd = rolled.sd["x"][0, :, 0]
    assert sd[0] == 0 < sd[2] < sd[5] < sd[10]
    assert rolled.member.tolist() == [m for m in range(3) for _ in range(20)]
    exact = line.rollout({"x": (0.0, 0.0)}, PUSHES, particles=0)
    ends = exact.observation["x"][:, 0, -1, 0].tolist()
    assert len(set(ends)) == 3


def test_a_particle_stays_where_it_ended(line):
    rolled = line.rollout({"x": (3.8, 1.0)}, PUSHES, particles=0)
    assert (rolled.alive[:, 0, 1:] < 0.5).all()
    assert (rolled.reward[:, 0, 1:].abs() < 0.5).all()
    place = rolled.observation["x"][:, 0]
    assert torch.equal(place[:, 2:], place[:, 1:2].expand(-1, 9, -1))


def test_a_policy_and_tensors_act_as_recorded_values_do(line):
    start = {"x": (0.0, 0.0)}
    given = line.rollout(start, PUSHES, particles=0)
    tensors = line.rollout(start, {"push": torch.full((10,), 0.1)}, particles=0)
    policy = line.rollout(
        start, lambda fields, _: {"push": torch.full(fields["x"].shape[:2], 0.1)}, 10, particles=0
    )
    for other in (tensors, policy):
        assert torch.allclose(other.mean["x"], given.mean["x"])
        assert torch.allclose(other.reward, given.reward)


def test_a_policy_that_writes_into_its_tensors_changes_no_state(line):
    def policy(fields, _):
        fields["x"].zero_()
        return {"push": torch.full(fields["x"].shape[:2], 0.1)}

    rolled = line.rollout({"x": (1.0, 0.5)}, policy, 3, particles=0)
    expected = line.rollout({"x": (1.0, 0.5)}, PUSHES, 3, particles=0)
    assert torch.allclose(rolled.mean["x"], expected.mean["x"])


def test_an_authors_reward_counts(line):
    rolled = line.rollout(
        {"x": (0.0, 0.0)}, PUSHES, particles=0, reward=lambda _, action, __: action["push"]
    )
    assert rolled.reward[:, 0, :5].flatten().tolist() == pytest.approx([0.1] * 15, abs=0.01)


@pytest.mark.parametrize(
    ("observation", "actions", "horizon", "told"),
    [
        ({"x": (0.0, math.inf)}, PUSHES, None, "must be finite"),
        ({"x": (0.0,)}, PUSHES, None, "shape"),
        ({"x": (0.0, 10**400)}, PUSHES, None, "'x' must be numbers of shape"),
        ({}, PUSHES, None, "missing"),
        ({"x": (0.0, 0.0)}, [{"push": None}], None, "'push' is missing"),
        ({"x": (0.0, 0.0)}, [], None, "horizon"),
        ({"x": (0.0, 0.0)}, PUSHES, 0, "horizon must be a whole number of at least 1"),
        ({"x": (0.0, 0.0)}, None, None, "actions must be a sequence .* got None"),
        ({"x": (0.0, 0.0)}, "left", None, "actions must be a sequence .* got 'left'"),
        ({"x": (0.0, 0.0)}, ["left"], None, "action must be a mapping .* got 'left'"),
        ({"x": (0.0, 0.0)}, [None], None, "action must be a mapping .* got None"),
        ({"x": (0.0, 0.0)}, [PUSHES, {"push": 1}], None, "sequences of one length"),
        ({"x": (0.0, 0.0)}, {"push": ["a"]}, None, "action 'push' must be numbers"),
        ({"x": (0.0, 0.0)}, lambda *_: None, 2, "policy must return a mapping .* got None"),
        ({"x": (0.0, 0.0)}, lambda *_: {"push": None}, 2, "'push' must be numbers, got None"),
        ({"x": (0.0, 0.0)}, lambda *_: {}, 10**9, "horizon .* at most 10000"),
        ({"x": (0.0, 0.0)}, PUSHES, 2.5, "horizon must be a whole number.*got 2.5"),
        ({"x": (0.0, 0.0)}, PUSHES, True, "horizon must be a whole number.*got True"),
        (None, PUSHES, None, "must be a mapping of its fields, got None"),
        ([None], PUSHES, None, "must be a mapping of its fields, got None"),
        ({"x": (0.0, 0.0)}, PUSHES, 11, "10 steps"),
        ({"x": (0.0, 0.0)}, [{"push": (1.0, 2.0)}], None, "shape"),
    ],
)
def test_bad_input_is_named(line, observation, actions, horizon, told):
    with pytest.raises(ValueError, match=told):
        line.rollout(observation, actions, horizon)


@pytest.mark.parametrize("speed", [None, math.nan])
def test_a_rollout_from_a_gap_is_as_uncertain_as_the_prediction(line, speed):
    start = {"x": (0.5, speed)}
    [predicted] = line.predict_batch([start], PUSHES[:1])
    rolled = line.rollout(start, PUSHES, particles=8)
    sd = rolled.sd["x"][0, :, 0]
    assert float(sd[1]) == pytest.approx(predicted.deviations["x"][0], rel=0.25)
    assert sd[10] > 3 * sd[1]  # the speed stays unknown, so that the places diverge
    again = line.rollout(start, PUSHES, particles=8)
    assert torch.equal(rolled.observation["x"], again.observation["x"])
    places = line.rollout([{"x": (0.5, 0.0)}, start], PUSHES, particles=8).observation["x"]
    assert len(set(places[:, 0, 0, 1].tolist())) == 1  # only its own row


def _gain(_, action, after):
    """Pays where the speed is positive, which only the speed before tells."""
    return action["push"] * (1.0 + 1.5 * after["x"][..., 1])


@pytest.mark.parametrize("candidates", [None, [{"push": 0.0}, {"push": 1.0}]])
def test_a_gap_at_the_start_has_a_price(line, candidates):
    def plan(speed, penalty):
        settings = PlanSettings(reward=_gain, candidates=candidates, penalty=penalty)
        return line.plan({"x": (0.0, speed)}, 1, settings)

    bold, careful, known = plan(None, 0.0), plan(None, 3.0), plan(1.5, 3.0)
    assert bold.actions[0]["push"] == pytest.approx(1.0, abs=0.02)
    assert bold.sd > 1.0
    assert careful.actions[0]["push"] == pytest.approx(0.0, abs=0.1)
    assert known.actions[0]["push"] == pytest.approx(1.0, abs=0.02)
    assert known.sd < 0.2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"particles": -1}, "particles must be a whole number of at least 0 .*got -1"),
        ({"hold": "x"}, r"hold must be a list of fields, got 'x': write \['x'\]"),
        ({"hold": ["c"]}, "hold names 'c'"),
        ({"hold": [["x"]]}, r"hold names \['x'\], which the observation lacks"),
        ({"hold": ["x"]}, "hold names 'x', which the model continues"),
        ({"particles": 10**12}, "particles must be .* at most 1000000"),
        ({"hold": None}, "hold must be a list of fields, got None"),
        ({"reward": "reward"}, "reward must be a function"),
        ({"seed": 2**64}, "seed must be a whole number of at least 0 and at most"),
        ({"reward": lambda _, action, __: action["push"] / 0.0}, "NaN or infinity"),
    ],
)
def test_bad_options_are_named(line, options, told):
    with pytest.raises(ValueError, match=told):
        line.rollout({"x": (0.0, 0.0)}, PUSHES, **options)


def test_text_cannot_be_rolled_out(fitted):
    with pytest.raises(ValueError, match=r"code.*Text"):
        fitted.rollout({"x": (0.0, 1.0), "code": "let"}, [{"kind": "a"}])
