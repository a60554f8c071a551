import random
from dataclasses import replace

from infrastructure.agent_contract.transition import Box, Discrete, Transition, TransitionSpec

SPEC = TransitionSpec(
    observation={"size": Box()},
    action={"kind": Discrete(values=("a", "b"))},
    targets={"price": Box(), "sold": Discrete(values=("no", "yes"))},
)


def market(rows=2000, inflation=0.0, sales_fall=False, seed=0):
    generator, made = random.Random(seed), []
    for number in range(rows):
        time, size = number / rows, generator.uniform(1, 3)
        chance = 0.9 - 0.8 * time if sales_fall else 0.5
        made.append(
            Transition(
                group=f"day {number // 10}",
                observation={"size": size},
                action={"kind": generator.choice("ab")},
                next_observation={
                    "price": size * (1 + inflation * time) + generator.gauss(0, 0.1),
                    "sold": "yes" if generator.random() < chance else "no",
                },
            )
        )
    return made


def test_prices_that_rise_with_time_are_named_with_the_option(check):
    (found,) = check(SPEC, market(inflation=1.0))
    assert (found.kind, found.fields) == ("drift", ("price",))
    assert found.figures["squared_error_ratio"] > 1.2
    assert 'split = "time"' in found.remedy
    assert check(replace(SPEC, split="time"), market(inflation=1.0)) == []


def test_labels_that_become_rare_are_named(check):
    (found,) = check(SPEC, market(sales_fall=True))
    assert (found.kind, found.fields) == ("drift", ("sold",))


def test_what_does_not_depend_on_time_is_not_named(check):
    for seed in range(5):
        assert check(SPEC, market(seed=seed)) == []
    shuffled = market(inflation=1.0)
    random.Random(0).shuffle(shuffled)
    assert check(SPEC, shuffled) == []


def test_rare_sales_of_whole_days_beside_a_clock_are_not_named(check):
    """A regression on a clock extrapolates, and few days with sales seem to prove it wrong."""
    spec = replace(SPEC, observation={"size": Box(), "clock": Box()})
    for seed in range(8):
        generator = random.Random(seed)
        sold = {f"day {day}": generator.random() < 0.02 for day in range(100)}
        rows = [
            replace(
                row,
                observation={**row.observation, "clock": float(number)},
                next_observation={
                    **row.next_observation,
                    "sold": "yes" if sold[row.group] else "no",
                },
            )
            for number, row in enumerate(market(rows=1000, seed=seed))
        ]
        assert check(spec, rows) == []


def test_few_groups_tell_nothing(check):
    assert check(SPEC, market(rows=300, inflation=5.0)) == []


def test_a_policy_that_improves_is_no_drift(grid_spec, record_grid, check):
    """States shift towards the goal; the rules of the game stay."""
    early = record_grid(200, (20,), (0, 0))
    late = [replace(row, group=f"late {row.group}") for row in record_grid(100, (20,), (4, 4), 1)]
    assert check(grid_spec, early + late) == []
