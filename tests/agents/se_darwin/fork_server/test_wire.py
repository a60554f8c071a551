from __future__ import annotations

import json
import math
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.se_darwin.fork_server.wire import ProgramNames, UnsendableError, Wire

CLASSES = """
from collections import namedtuple
from dataclasses import dataclass
from enum import Enum, Flag
from http import HTTPStatus
from unittest.mock import _ANY, _Call

Pair = namedtuple("Pair", "first second")

class Colour(Enum):
    RED = 1

class Access(Flag):
    READ = 1
    WRITE = 2

@dataclass
class Point:
    x: int
    y: list

@dataclass(frozen=True, slots=True)
class Cell:
    x: int
    _y: object = None

MISSING = object()

class Doubled(tuple):
    def __new__(cls, x):
        return tuple.__new__(cls, (x, 2 * x))

class Text(str):
    pass

class Oops(ValueError):
    pass
"""
OTHERS = """
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from wire_classes import Colour, Point as Imported

class Shade(Enum):
    DARK = 1

@dataclass
class Point:
    z: object

def double(x):
    return 2 * x
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
    made = sys.modules["wire_classes"] = ModuleType("wire_classes")
    exec(CLASSES, vars(made))
    other = sys.modules["wire_others"] = ModuleType("wire_others")
    exec(OTHERS, vars(other))
    return made


@pytest.fixture(scope="module")
def wire(module: ModuleType) -> Wire:
    return Wire(names_of(module))


def names_of(module: ModuleType) -> ProgramNames:
    return ProgramNames(module, ["wire_classes", "wire_others", "wire_not_imported"])


def sent(wire: Wire, value: object) -> Any:
    return pass_on(wire, Wire(wire._program, first=1), value)[0]


def pass_on(sender: Wire, receiver: Wire, *values: object) -> list[Any]:
    return receiver.decode(json.loads(json.dumps(sender.encode(*values))))


@pytest.mark.process
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
        module.Cell(1, (2,)),
        module.Colour.RED,
        module.Access.READ,
        module.Access.READ | module.Access.WRITE,
        module.Access(0),
        module.HTTPStatus.OK,
    ):
        arrived = sent(wire, [value])[0]
        assert arrived == value
        assert type(arrived) is type(value)


@pytest.fixture
def two(module: ModuleType) -> tuple[Wire, Wire]:
    """The suite runner's end and the candidate's."""
    return Wire(names_of(module)), Wire(names_of(module), first=1)


def test_the_same_object_arrives_as_the_same(two: tuple[Wire, Wire], module: Any) -> None:
    runner, candidate = two
    mine, cell = [1], module.Cell(1)
    first, second, third = pass_on(runner, candidate, mine, [mine, cell], (cell,))
    assert second[0] is first
    assert second[1] is third[0]
    [back] = pass_on(candidate, runner, first)
    assert back is mine, "also on the way back"
    assert pass_on(runner, candidate, mine)[0] is first, "and in a later call"
    assert pass_on(candidate, runner, cached := [2])[0] is pass_on(candidate, runner, cached)[0]


def test_changes_are_made_in_the_same_object(two: tuple[Wire, Wire], module: Any) -> None:
    runner, candidate = two
    mine = [{"a": 1}, {1}, module.Point(1, [2]), bytearray(b"a"), deque([1]), defaultdict(list)]
    inner = list(mine)
    [theirs] = pass_on(runner, candidate, mine)
    theirs[0]["b"] = theirs
    theirs[1].add(2)
    theirs[2].y.append(3)
    theirs[3] += b"b"
    theirs[4].appendleft(0)
    theirs[5]["x"].append(1)
    theirs.append(None)
    assert pass_on(candidate, runner, theirs)[0] is mine
    assert all(each is known for each, known in zip(mine, inner, strict=False))
    assert mine[0] == {"a": 1, "b": mine}
    expected = [{1, 2}, module.Point(1, [2, 3]), b"ab", deque([0, 1]), {"x": [1]}, None]
    assert mine[1:] == expected


def test_cycles_and_depth_arrive(two: tuple[Wire, Wire], module: Any) -> None:
    ring: list[Any] = [1]
    ring.append((ring, module.Point(ring, {"ring": ring})))
    [arrived] = pass_on(*two, ring)
    assert arrived[1][0] is arrived
    assert arrived[1][1].x is arrived[1][1].y["ring"] is arrived
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    [arrived] = pass_on(*two, deep)
    depth = 0
    while arrived:
        [arrived], depth = arrived, depth + 1
    assert depth == 5000


def test_what_has_only_its_identity_arrives_by_its_name(wire: Wire, module: Any) -> None:
    for value in (module.MISSING, module.Point, module.dataclass):
        assert sent(wire, [value])[0] is value


@pytest.mark.parametrize("factory", [None, list, int, "Point"])
def test_a_defaultdict_keeps_its_factory(wire: Wire, module: Any, factory: Any) -> None:
    if factory == "Point":
        factory = module.Point
    arrived = sent(wire, defaultdict(factory, {1: 2}))
    assert (arrived, arrived.default_factory) == ({1: 2}, factory)


def test_a_slot_that_was_deleted_is_deleted(two: tuple[Wire, Wire], module: Any) -> None:
    cell = module.Cell(1, [2])
    [theirs] = pass_on(*two, cell)
    object.__delattr__(theirs, "x")
    pass_on(two[1], two[0], theirs)
    assert not hasattr(cell, "x")
    assert cell._y == [2]


def test_a_long_suite_forgets_objects_on_both_ends(
    two: tuple[Wire, Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.se_darwin.fork_server.wire.MAX_KNOWN", 10)
    runner, candidate = two
    for number in range(50):
        mine = [[number]]
        [theirs] = pass_on(runner, candidate, mine)
        theirs[0].append("x")
        assert pass_on(candidate, runner, theirs)[0] is mine
        assert mine == [[number, "x"]]
        assert len(runner._known) <= 13
        assert len(candidate._known) <= 13


def test_an_object_of_too_many_parts_is_refused(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.se_darwin.fork_server.wire.MAX_NODES", 10)
    with pytest.raises(UnsendableError, match="not plain data"):
        wire.encode([[] for _ in range(11)])


def test_an_iterator_arrives_as_one(wire: Wire) -> None:
    arrived = sent(wire, (n * n for n in range(3)))
    assert next(arrived) == 0
    assert list(arrived) == [1, 4]
    assert len(list(sent(wire, iter(int, 1)))) == 2000, "endless ones are cut"


def test_what_runs_or_only_looks_plain_does_not(wire: Wire, module: Any) -> None:
    class Foreign:
        pass

    namesake = type("Point", (), {})
    for value in (
        len,
        lambda: 0,
        int,
        object(),
        Foreign(),
        namesake(),
        module.Text("x"),
        module._ANY(),
        module._Call(),
    ):
        with pytest.raises(UnsendableError):
            wire.encode([value])


def node(tag: object, extra: object, *parts: object) -> dict[str, object]:
    return {"roots": [["object", 0]], "nodes": [[0, tag, extra, list(parts)]]}


@pytest.mark.parametrize(
    "forged",
    [
        node("enum", ["Colour", "GREEN"]),
        node("flag", "Colour", 1),
        node("flag", "Access", "READ"),
        node("flag", "Access", 1, 2),
        node("enum", ["Point", "x"]),
        node("Fraction", None, 1, 0),
        node("timedelta", None, 10**12),
        node("instance", ["Nobody", []]),
        node("instance", ["dataclass", []]),
        node("instance", ["Text", []]),
        node("instance", ["_ANY", []]),  # which equals everything
        node("instance", ["Point", ["x"]]),
        node("named tuple", "_Call"),
        node("named tuple", "Point"),
        node("instance", ["fractions:Fraction", []]),
        node("instance", ["wire_others:Fraction", []]),
        node("instance", ["wire_others:Nobody", []]),
        node("instance", ["wire_not_imported:Point", []]),
        node("eval", None),
        node("tuple", None, ["object", 0]),
        node("defaultdict", "namedtuple_of_nobody"),
        node("dict", None, 1),
        {"roots": [["object", 7]], "nodes": []},
        {"roots": [["global", "HTTPStatus"]], "nodes": []},
        {"roots": [["nothing", "x"]], "nodes": []},
        {"roots": [[]], "nodes": []},
        {"roots": []},
        {"roots": [], "nodes": [[]]},
    ],
)
def test_what_was_not_encoded_is_refused(module: ModuleType, forged: Any) -> None:
    with pytest.raises((ValueError, TypeError, LookupError, ArithmeticError)):
        Wire(names_of(module)).decode(forged)


def test_objects_of_the_programs_other_modules_arrive(wire: Wire, module: Any) -> None:
    others = sys.modules["wire_others"]
    point, shade = others.Point(module.Point(1, [])), others.Shade.DARK
    arrived = sent(wire, [point, shade, others.double, others.Point])
    assert arrived == [point, shade, others.double, others.Point]
    assert type(arrived[0].z) is module.Point
    with pytest.raises(UnsendableError):  # defined by neither module
        Wire(ProgramNames(module)).encode(point)


@pytest.mark.parametrize("tag", ["list", "dict", "defaultdict", "deque", "set", "bytearray"])
def test_a_known_object_does_not_become_another_kind(module: Any, tag: str) -> None:
    wire = Wire(names_of(module))
    wire.encode(module.Point(1, []))
    [point] = wire._known.values() if len(wire._known) == 1 else [*wire._known.values()][:1]
    with pytest.raises(TypeError, match="does not become"):
        wire.decode(node(tag, None))
    assert vars(point) if isinstance(point, module.Point) else point == []


def test_errors_arrive_as_their_class(wire: Wire, module: Any) -> None:
    for error in (module.Oops("a", 1), json.JSONDecodeError("m", "doc", 3), KeyError("k")):
        arrived = wire.decode_error(*json.loads(json.dumps(wire.encode_error(error))))
        assert type(arrived) is type(error)
        assert arrived.args == error.args
    arrived = wire.decode_error(*json.loads(json.dumps(wire.encode_error(ValueError("a", len)))))
    assert (type(arrived), arrived.args) == (ValueError, ()), "what cannot be sent is left out"


def test_an_error_of_no_known_class_is_still_one(wire: Wire) -> None:
    for place, name in (("builtins", "len"), ("nowhere", "Error"), ("builtins", "int")):
        assert type(wire.decode_error(place, name, wire.encode())) is RuntimeError
