"""Rows become transitions; groups stay whole, and what is fresh was not recorded."""

import math

import pytest

from benchmarks.world_model.tables import Table
from infrastructure.agent_contract.transition import Box, Discrete, Text

ROWS = [
    {
        "size": "NA" if number == 7 else str(number),
        "colour": "red" if number % 3 else "blue",
        "note": f"note {number}",
        "person": str(number // 2),
        "price": str(10 * number),
    }
    for number in range(40)
]


@pytest.fixture
def table():
    return Table(
        rows=lambda: ROWS,
        target="price",
        labels=frozenset({"colour"}),
        text=frozenset({"note"}),
        dropped=frozenset({"person"}),
        group=lambda row, _: row["person"],
    )


def test_columns_become_fields(table):
    spec = table.record(0, 0).spec
    assert spec.observation == {
        "size": Box(),
        "colour": Discrete(values=("blue", "red")),
        "note": Text(),
    }
    assert spec.targets == {"price": Box()}


def test_every_row_is_recorded_once(table):
    recording = table.record(0, 0)
    prices = sorted(each.next_observation["price"] for each in recording.transitions)
    assert prices == [float(row["price"]) for row in ROWS]
    assert recording.fresh == []


def test_a_missing_number_is_nan(table):
    found = [each.observation["size"] for each in table.record(0, 0).transitions]
    assert sum(map(math.isnan, found)) == 1


def test_fresh_groups_were_not_recorded(table):
    recording = table.record(3, 10)
    recorded = {each.group for each in recording.transitions}
    fresh = {each.group for each in recording.fresh}
    assert len(recording.transitions) == 10
    assert len(recording.fresh) == 30
    assert not recorded & fresh


def test_each_seed_names_its_own_groups(table):
    first, second = ({each.group for each in table.record(s, 0).transitions} for s in (0, 1))
    assert not first & second
    assert {name.partition("/")[2] for name in first} == {row["person"] for row in ROWS}


def test_holes_are_in_numbers_of_the_inputs_alone():
    table = Table(rows=lambda: ROWS, target="price", labels=frozenset({"colour", "note", "person"}))
    holed = Table(rows=table.rows, target="price", labels=table.labels, holes=0.5)
    found = holed.record(0, 0).transitions
    missing = sum(math.isnan(each.observation["size"]) for each in found)
    assert 10 < missing < 30
    assert not any(math.isnan(each.next_observation["price"]) for each in found)
