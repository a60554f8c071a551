from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, deque
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.se_darwin.fork_server.wire import UnsendableError, Wire, make_module

CLASSES = """
from collections import namedtuple
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from unittest.mock import _ANY, _Call

Pair = namedtuple("Pair", "first second")

class Colour(Enum):
    RED = 1

@dataclass
class Point:
    x: int
    y: list

class Doubled(tuple):
    def __new__(cls, x):
        return tuple.__new__(cls, (x, 2 * x))

class Text(str):
    pass

class Oops(ValueError):
    pass
"""
atoms = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
atoms |= st.binary() | st.binary().map(bytearray) | st.complex_numbers(allow_nan=False)
atoms |= st.dates() | st.datetimes() | st.timedeltas() | st.fractions()
atoms |= st.decimals(allow_nan=False)
hashable = st.none() | st.booleans() | st.integers() | st.text() | st.fractions()
values = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(deque)
        | st.dictionaries(hashable, inner)
        | st.dictionaries(hashable, inner).map(OrderedDict)
        | st.sets(hashable)
        | st.frozensets(hashable)
    ),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return make_module("wire_classes", CLASSES, "<classes>")


@pytest.fixture(scope="module")
def wire(module: ModuleType) -> Wire:
    return Wire(module)


def sent(wire: Wire, value: object) -> Any:
    return wire.decode(json.loads(json.dumps(wire.encode(value))))


@given(value=values)
def test_plain_data_arrives_as_it_was(wire: Wire, value: object) -> None:
    arrived = sent(wire, value)
    assert arrived == value
    assert type(arrived) is type(value)


@given(value=atoms)
def test_nothing_of_a_single_value_is_lost(wire: Wire, value: object) -> None:
    assert repr(sent(wire, value)) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        math.inf,
        -0.0,
        range(3, 9, 2),
        Counter("aab"),
        datetime(2024, 1, 2, tzinfo=UTC),
        Fraction(1, 3),
        Decimal("NaN"),
        timedelta(1, 2, 3),
        date(1, 1, 1),
        10**300,
        [[], ()],
    ],
)
def test_so_do_the_rarer_kinds(wire: Wire, value: object) -> None:
    assert repr(sent(wire, value)) == repr(value)


def test_objects_of_the_programs_own_classes_arrive(wire: Wire, module: Any) -> None:
    for value in (
        module.Point(1, [2]),
        module.Pair(1, [2]),
        module.Doubled(3),
        module.Colour.RED,
        module.HTTPStatus.OK,
    ):
        arrived = sent(wire, [value])[0]
        assert arrived == value
        assert type(arrived) is type(value)


def test_an_iterator_arrives_as_one(wire: Wire) -> None:
    arrived = sent(wire, (n * n for n in range(3)))
    assert next(arrived) == 0
    assert list(arrived) == [1, 4]
    assert len(list(sent(wire, iter(int, 1)))) == 2000, "endless ones are cut"


def test_what_runs_or_only_looks_plain_does_not(wire: Wire, module: Any) -> None:
    class Foreign:
        pass

    namesake = type("Point", (), {})
    deep: list[object] = []
    for _ in range(100):
        deep = [deep]
    for value in (
        len,
        lambda: 0,
        int,
        object(),
        Foreign(),
        namesake(),
        module.Text("x"),
        module.Point,
        module._ANY(),
        module._Call(),
        deep,
    ):
        with pytest.raises(UnsendableError):
            wire.encode([value])


@pytest.mark.parametrize(
    "forged",
    [
        ["instance", "Colour", "GREEN"],
        ["instance", "Nobody", {}],
        ["instance", "dataclass", {}],
        ["instance", "Text", ["dict", []]],
        ["instance", "_ANY", ["dict", []]],  # which equals everything
        ["instance", "_Call", []],
        ["eval", ["list", []]],
        ["set", [["list", []]]],
        ["list"],
        [],
    ],
)
def test_what_was_not_encoded_is_refused(wire: Wire, forged: Any) -> None:
    with pytest.raises((ValueError, TypeError, LookupError)):
        wire.decode(forged)


def test_errors_arrive_as_their_class(wire: Wire, module: Any) -> None:
    for error in (module.Oops("a", 1), json.JSONDecodeError("m", "doc", 3), KeyError("k")):
        arrived = wire.decode_error(*json.loads(json.dumps(wire.encode_error(error))))
        assert type(arrived) is type(error)
        assert arrived.args == error.args
    arrived = wire.decode_error(*json.loads(json.dumps(wire.encode_error(ValueError("a", len)))))
    assert (type(arrived), arrived.args) == (ValueError, ()), "what cannot be sent is left out"


def test_an_error_of_no_known_class_is_still_one(wire: Wire) -> None:
    for place, name in (("builtins", "len"), ("nowhere", "Error"), ("builtins", "int")):
        assert type(wire.decode_error(place, name, ["tuple", []])) is RuntimeError


def test_the_module_has_a_file_name_for_those_who_ask(module: ModuleType) -> None:
    assert module.__file__ == "wire_classes.py"
