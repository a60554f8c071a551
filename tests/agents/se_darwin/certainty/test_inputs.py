from __future__ import annotations

import json
from random import Random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.se_darwin.certainty.inputs import make_inputs
from agents.se_darwin.fork_server.wire import Call, ProgramNames, Wire

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
VALUES = st.recursive(
    PLAIN,
    lambda each: (
        st.lists(each, max_size=4)
        | st.tuples(each, each)
        | st.dictionaries(st.text(max_size=3), each, max_size=3)
        | st.frozensets(st.integers(), max_size=3)
    ),
    max_leaves=8,
)


def call_of(*arguments: object, **keywords: object) -> Call:
    wire = Wire(ProgramNames(ModuleType("program")))
    return {"values": wire.encode(*arguments, *keywords.values()), "names": list(keywords)}


def values_of(call: Call) -> list[Any]:
    return Wire(ProgramNames(ModuleType("program")), first=1).decode(call["values"])


@pytest.mark.process
@settings(max_examples=30)
@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=3), st.integers(0, 5))
def test_all_inputs_can_be_decoded_and_are_distinct(
    arguments: list[tuple[object, object]], seed: int
) -> None:
    calls = [call_of(*each) for each in arguments]
    before = json.dumps(calls)
    inputs = make_inputs(calls, 20, Random(seed))
    assert json.dumps(calls) == before
    assert all(len(values_of(each.call)) == 2 for each in inputs)
    texts = [json.dumps(each.call) for each in inputs]
    assert len(texts) == len(set(texts)) <= len(calls) + 20
    assert [each.call for each in make_inputs(calls, 20, Random(seed))] == [
        each.call for each in inputs
    ]


def test_the_recorded_calls_come_first_and_the_others_tell_their_origin() -> None:
    calls = [call_of([1, 2], limit=3), call_of([1, 2], limit=3), call_of([], limit=0)]
    inputs = make_inputs(calls, 60, Random(0))
    assert [(each.origin, each.changes) for each in inputs[:2]] == [(0, 0), (2, 0)]
    assert all(each.changes and each.call["names"] == ["limit"] for each in inputs[2:])
    limits = {values_of(each.call)[1] for each in inputs}
    assert {2, 3, 4, 0, -1, 1} <= limits
    lists = [values_of(each.call)[0] for each in inputs]
    assert all(each in lists for each in ([], [2, 1], [2], [1, 3]))


def test_objects_of_the_program_stay_as_they_are() -> None:
    module = ModuleType("program")
    exec("class Line:\n    def __init__(self): self.price = 10", vars(module))
    line = module.Line
    wire = Wire(ProgramNames(module))
    call: Call = {"values": wire.encode([line(), line()]), "names": []}
    inputs = make_inputs([call], 30, Random(0))
    assert len(inputs) > 1
    for each in inputs:
        for _, tag, _, parts in each.call["values"]["nodes"]:
            assert tag != "instance" or parts == [10]


def test_nothing_is_made_from_no_calls() -> None:
    assert make_inputs([], 10, Random(0)) == []


def test_most_inputs_keep_what_all_calls_have_in_common() -> None:
    calls = [
        call_of([1, 4, 6, 9], [1.0, 0.5], weights=[3, 1]),
        call_of((-2, 5, 8), [2.0, 7.0, 7.0], weights=[2, 9, 4]),
        call_of([3], [1.0], weights=[8]),
    ]
    made = make_inputs(calls, 200, Random(0))[3:]
    like_the_others = []
    for each in made:
        items, values, weights = values_of(each.call)
        is_usual = list(items) == sorted(items) and len(values) == len(weights)
        assert each.is_usual == is_usual
        like_the_others.append(is_usual)
    assert 0.6 < sum(like_the_others) / len(like_the_others) < 1.0
    assert {len(values_of(each.call)[1]) for each in made} >= {0, 1, 2, 4}
    assert any(values_of(each.call)[1] != sorted(values_of(each.call)[1]) for each in made)
