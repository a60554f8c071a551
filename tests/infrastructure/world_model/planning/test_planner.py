import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infrastructure.world_model.planning import Planner, PlanSettings, beam

START = {"x": (0.0, 0.0)}
BOUNDS = {"push": (-1.0, 1.0)}


def test_a_quadratic_has_its_optimum(line):
    plan = line.plan(START, 4, PlanSettings(bounds=BOUNDS, iterations=5))
    assert [action["push"] for action in plan.actions] == pytest.approx([0.5] * 4, abs=0.15)
    assert plan.expected_return == pytest.approx(0.0, abs=0.1)
    assert not plan.cut


@settings(max_examples=10, deadline=None)
@given(low=st.floats(-1, 0.2), width=st.floats(0.01, 0.6), seed=st.integers(0, 100))
def test_actions_keep_their_bounds(line, low, width, seed):
    found = PlanSettings(bounds={"push": (low, low + width)}, samples=20, iterations=2)
    plan = line.plan(START, 3, found, seed=seed)
    assert all(low - 1e-9 <= action["push"] <= low + width + 1e-9 for action in plan.actions)


def test_a_maze_is_crossed_although_the_way_costs(maze):
    plan = maze.plan({"room": "a"}, 4)
    assert [action["go"] for action in plan.actions][:3] == ["right"] * 3
    assert plan.expected_return > 10


def test_candidates_restrict_the_choice(maze):
    plan = maze.plan({"room": "a"}, 3, PlanSettings(candidates=[{"go": "left"}]))
    assert [action["go"] for action in plan.actions] == ["left"] * 3


def test_a_penalty_prefers_what_the_members_agree_on(line):
    """A push beyond the data promises more speed, and the members disagree on how much."""
    daring, safe = {"push": 3.0}, {"push": 0.5}

    def plan(candidates, penalty=0.0):
        chosen = PlanSettings(
            candidates=candidates, penalty=penalty, reward=lambda _, __, after: after["x"][..., 1]
        )
        return line.plan(START, 1, chosen)

    alone = [plan([each]) for each in (daring, safe)]
    assert alone[0].expected_return > alone[1].expected_return
    price = (alone[0].expected_return - alone[1].expected_return) / (alone[0].sd - alone[1].sd)
    assert price > 0
    assert plan([daring, safe], 0.8 * price).actions == [daring]
    assert plan([daring, safe], 1.2 * price).actions == [safe]


def test_a_seed_repeats_a_plan(line):
    chosen = PlanSettings(bounds=BOUNDS)
    assert line.plan(START, 4, chosen, seed=1) == line.plan(START, 4, chosen, seed=1)


def test_the_previous_plan_is_where_the_next_begins(line):
    little = PlanSettings(bounds=BOUNDS, samples=12, elites=4, iterations=1)
    planner = line.planner(5, little, seed=0)
    returns = [planner.plan(START).expected_return for _ in range(8)]
    assert returns[-1] > returns[0]
    planner.reset()


@pytest.mark.parametrize("model", ["line", "maze"])
def test_a_deadline_returns_the_best_so_far(request, model):
    """The clock moves with each question, not with time."""
    model = request.getfixturevalue(model)
    ticks = iter(range(1000))
    chosen = PlanSettings(bounds=BOUNDS) if "push" in model.spec.action else PlanSettings()
    planner = Planner(
        model.fitted_model, 6, chosen, reward="reward", clock=lambda: float(next(ticks))
    )
    start = START if "push" in model.spec.action else {"room": "a"}
    plan = planner.plan(start, deadline=2.0)
    assert plan.cut
    assert plan.actions
    assert plan.evaluations > 0


def test_a_deadline_is_kept_within_a_step_over_many_candidates(maze, monkeypatch):
    monkeypatch.setattr(beam, "_MOST_ROWS", 8)
    ticks = iter(range(1000))
    planner = Planner(
        maze.fitted_model,
        3,
        PlanSettings(candidates=[{"go": "left"}] * 20),
        reward="reward",
        clock=lambda: float(next(ticks)),
    )
    plan = planner.plan({"room": "a"}, deadline=10.0)  # the second step has 400 rows
    assert plan.cut
    assert len(plan.actions) == 1
    assert next(ticks) < 14


def test_steps_in_parts_find_the_same_plan(maze, line, monkeypatch):
    pushes = PlanSettings(candidates=[{"push": 0.1 * number} for number in range(8)])
    plans = [(maze, {"room": "a"}, PlanSettings()), (line, START, pushes)]
    whole = [model.plan(start, 3, chosen) for model, start, chosen in plans]
    monkeypatch.setattr(beam, "_MOST_ROWS", 3)
    parts = [model.plan(start, 3, chosen) for model, start, chosen in plans]
    for one, other in zip(whole, parts, strict=True):
        assert one.actions == other.actions
        assert one.expected_return == pytest.approx(other.expected_return, abs=1e-5)


def test_what_a_reward_forbids_does_not_hide_the_order_of_the_rest(line):
    """A beam of one is greedy: the best that is allowed comes first at each step."""

    def reward(_, action, __):
        push = action["push"]
        return torch.where(push > 0.9, -torch.inf, push)

    for seed in range(5):
        chosen = PlanSettings(
            candidates=[{"push": 0.25 * number} for number in range(5)],
            reward=reward,
            beam_width=1,
        )
        plan = line.plan(START, 2, chosen, seed=seed)
        assert plan.actions == [{"push": 0.75}] * 2


@pytest.mark.parametrize(
    ("horizon", "chosen", "told"),
    [
        (0, {}, "horizon must be a whole number of at least 1"),
        (2.5, {}, "horizon must be a whole number of at least 1 .*got 2.5"),
        (True, {}, "horizon must be a whole number of at least 1 .*got True"),
        (3, {"hold": "x"}, r"write \['x'\]"),
        (3, {"reward": lambda _, action, __: action["push"] / 0.0}, "NaN or infinity"),
        (3, {"bounds": {"pull": (0, 1)}}, "pull"),
        (3, {"bounds": {"push": (1, -1)}}, "ascending"),
        (3, {"bounds": {"push": ("a", 1)}}, "bounds of 'push' must be numbers, got 'a'"),
        (3, {"candidates": ["left"]}, "action must be a mapping .* got 'left'"),
    ],
)
def test_bad_options_are_named(line, horizon, chosen, told):
    with pytest.raises(ValueError, match=told):
        line.plan(START, horizon, PlanSettings(**chosen))


@pytest.mark.parametrize(
    "chosen",
    [
        {"samples": 0},
        {"iterations": 1.5},
        {"penalty": -1},
        {"penalty": math.inf},
        {"discount": 0},
        {"noise_colour": math.inf},
        {"noise_colour": "red"},
        {"noise_colour": 1e4},
        {"penalty": True},
        {"penalty": 10**400},
        {"discount": True},
        {"candidates": []},
        {"candidates": "left"},
        {"candidates": {"go": "left"}},
        {"candidates": 3},
        {"reward": 3},
        {"bounds": None},
        {"bounds": {"push": 1}},
        {"bounds": {"push": "ab"}},
    ],
)
def test_settings_are_checked(chosen):
    with pytest.raises(ValueError, match=next(iter(chosen))):
        PlanSettings(**chosen)


def test_settings_of_another_type_are_refused(line):
    with pytest.raises(ValueError, match="settings must be PlanSettings, got"):
        line.plan(START, 2, {"samples": 3})


@pytest.mark.parametrize("deadline", [math.nan, -1, True, "1"])
def test_a_deadline_is_checked(line, deadline):
    with pytest.raises(ValueError, match="deadline must be seconds, at least 0"):
        line.plan(START, 2, deadline=deadline)


@pytest.mark.parametrize("seed", [1.5, True, -1])
def test_a_seed_is_checked(line, seed):
    with pytest.raises(ValueError, match="seed must be a whole number"):
        line.plan(START, 2, seed=seed)
    with pytest.raises(ValueError, match="seed must be a whole number"):
        line.rollout(START, [{"push": 0.0}], seed=seed)


def test_no_observation_is_named(line):
    with pytest.raises(ValueError, match="must be a mapping of its fields, got None"):
        line.plan(None, 2)


def test_a_reward_that_is_no_tensor_is_refused(line):
    chosen = PlanSettings(bounds=BOUNDS, reward=lambda *_: 1.0)
    with pytest.raises(ValueError, match=r"tensor of one number per row.*got float"):
        line.plan(START, 2, chosen)
