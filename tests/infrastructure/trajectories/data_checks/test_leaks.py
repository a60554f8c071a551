import random
from dataclasses import replace

import pytest

from infrastructure.agent_contract.transition import Box, Discrete, Text, Transition, TransitionSpec


def add(spec, transitions, field, value_of, name="result"):
    """*transitions* with one more field of the observation, computed from row and number."""
    spec = replace(spec, observation={**spec.observation, name: field})
    rows = [
        replace(row, observation={**row.observation, name: value_of(row, number)})
        for number, row in enumerate(transitions)
    ]
    return spec, rows


def leaks(findings):
    return [finding.fields for finding in findings if finding.kind == "leak"]


def solved(row):
    return row.next_observation["solved"]


LABEL_LEAKS = {
    "label": (Discrete(values=("open", "closed")), lambda row, _: ("open", "closed")[solved(row)]),
    "text": (Text(), lambda row, _: f"the case is {('open', 'closed')[solved(row)]}"),
    "flag": (Box(), lambda row, _: float(solved(row))),
    "number": (Box(), lambda row, n: n % 7 + 100 * solved(row)),
    "noisy": (Box(), lambda row, n: float(solved(row) != (n % 200 == 0))),
    "missing": (Box(), lambda row, n: float(n % 5) if solved(row) else float("nan")),
}


@pytest.mark.parametrize("kind", LABEL_LEAKS)
def test_a_field_that_contains_the_label_is_named(spec, record_noise, check, kind):
    found = check(*add(spec, record_noise(1000, 10), *LABEL_LEAKS[kind]))
    assert leaks(found) == [("solved", "observation.result")]
    assert "observation.result alone predicts solved almost perfectly" in found[0].problem
    assert "base rate 59.7%" in found[0].problem
    assert found[0].remedy == (
        "remove observation.result from the inputs if it is known only after the action"
    )


@pytest.mark.parametrize("function", [lambda y: 100 * y, lambda y: 2.0**y, lambda y: -round(y, 2)])
def test_a_field_that_contains_the_number_is_named(spec, record_noise, check, function):
    spec, rows = add(spec, record_noise(1000, 10), Box(), lambda row, _: function(row.reward))
    assert leaks(check(spec, rows)) == [("reward", "observation.result")]


def test_one_dimension_of_a_vector_is_named(spec, record_noise, check):
    spec, rows = add(spec, record_noise(), Box(shape=(2,)), lambda row, n: (n % 3, row.reward))
    assert leaks(check(spec, rows)) == [("reward", "observation.result[1]")]


def test_a_rare_success_that_leaks_is_found(spec, record_noise, check):
    rows = [
        replace(row, next_observation={"solved": number % 200 == 7})
        for number, row in enumerate(record_noise(6000, 10))
    ]
    assert leaks(check(*add(spec, rows, Box(), lambda row, _: 3.0 * solved(row)))) == [
        ("solved", "observation.result")
    ]
    assert leaks(check(spec, rows)) == []


NO_LEAKS = {
    "row number": (Box(), lambda _, n: n),
    "name of the row": (Text(), lambda _, n: f"row {n}"),
    "a good hint": (Box(), lambda row, n: float(solved(row) != (n % 10 == 0))),
}


@pytest.mark.parametrize("kind", NO_LEAKS)
def test_what_tells_no_outcome_is_no_leak(spec, record_noise, check, kind):
    assert check(*add(spec, record_noise(1000, 10), *NO_LEAKS[kind])) == []


def test_what_the_agent_chooses_is_no_leak(spec, record_noise, check):
    rows = [
        replace(row, next_observation={"solved": row.action["reply"] == "x"})
        for row in record_noise()
    ]
    assert check(spec, rows) == []


def test_a_deterministic_game_has_no_leaks(grid_spec, record_grid, check):
    assert check(grid_spec, record_grid()) == []


def test_a_state_that_ends_the_episode_or_hardly_changes_is_no_leak(check):
    """Of ``x' = x + v ÷ 50`` the speed tells the change, and the place the end, without noise."""
    spec = TransitionSpec(
        observation={"x": Box(), "v": Box(), "metres": Box()},
        action={},
        targets={
            "x": Box(delta=True),
            "v": Box(),
            "terminated": Discrete(values=("false", "true")),
        },
    )
    generator, rows = random.Random(0), []
    for number in range(2000):
        x, v = generator.uniform(-2, 2), generator.uniform(-1, 1)
        rows.append(
            Transition(
                group=f"g{number // 20}",
                observation={"x": x, "v": v, "metres": 1000 * x},
                action={},
                next_observation={"x": x + v / 50, "v": v},
                terminated=abs(x) > 1.5,
            )
        )
    found = check(spec, rows)
    assert leaks(found) == [("terminated", "observation.metres")]  # not a state that is predicted
