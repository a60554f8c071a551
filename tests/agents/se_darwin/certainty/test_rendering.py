from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from types import ModuleType
from typing import Any

import pytest

from agents.se_darwin.certainty.rendering import render_arguments, render_call, render_result
from agents.se_darwin.fork_server.canonical import canonical
from agents.se_darwin.fork_server.wire import MESSAGE_MARK, Call, Message, ProgramNames, Wire
from agents.se_darwin.sandbox import Output

PROGRAM = """
from enum import Enum
from typing import NamedTuple

class Colour(Enum):
    RED = 1

class Point(NamedTuple):
    x: int
    y: int

class Line:
    def __init__(self):
        self.price, self.count = 9.5, 2
"""


@pytest.fixture
def program() -> ModuleType:
    module = ModuleType("program")
    exec(PROGRAM, vars(module))
    return module


def call_of(module: ModuleType, *arguments: object, **keywords: object) -> Call:
    values = Wire(ProgramNames(module)).encode(*arguments, *keywords.values())
    return {"values": values, "names": list(keywords)}


CET = timezone(timedelta(hours=1), "CET")
LIBRARY = {
    each.__name__: each
    for each in (
        *(OrderedDict, Counter, defaultdict, deque, Decimal, Fraction),
        *(date, datetime, time, timedelta, timezone),
    )
}


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, -(1 << 60), 2.5, "a'b", b"x", Decimal("1.5")),
        *([], [1, [2]], (), (1,), (1, 2), set(), {1}, {"a": 1, 2: []}),
        *(frozenset([1]), deque([1, 2]), OrderedDict(a=1), Counter("aa"), bytearray(b"x")),
        *(defaultdict(list, {"a": [1]}), defaultdict(None, {1: 2}), range(1, 5, 2)),
        *(Fraction(1, 3), 1 + 2j, float("inf"), -float("inf"), complex("inf-1j")),
        *(date(2024, 3, 29), datetime(2024, 3, 29, 1, 2, 3, 4), datetime(2024, 3, 29, fold=1)),
        *(datetime(2024, 3, 29, tzinfo=UTC), datetime(2024, 3, 29, 1, fold=1, tzinfo=CET)),
        *(time(1, 2), time(1, tzinfo=CET), timedelta(), timedelta(-1, 5, 7), UTC, CET),
        [(date(2024, 1, 5), {date(2024, 2, 1): [timedelta(days=1)]})],
    ],
)
def test_a_call_is_written_as_python(program: ModuleType, value: Any) -> None:
    text = render_call("f", call_of(program, value, key=value))
    assert eval(text, LIBRARY | {"f": lambda given, key: (given, key)}) == (value, value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (date(2024, 3, 29), "date(2024, 3, 29)"),
        (datetime(2024, 3, 29, 12, 30), "datetime(2024, 3, 29, 12, 30)"),
        (
            datetime(2024, 3, 29, fold=1, tzinfo=UTC),
            "datetime(2024, 3, 29, 0, 0, fold=1, tzinfo=timezone.utc)",
        ),
        (time(8, tzinfo=CET), "time(8, 0, tzinfo=timezone(timedelta(seconds=3600), 'CET'))"),
        (timedelta(days=1), "timedelta(days=1)"),
        (float("nan"), "float('nan')"),
        (complex("nanj"), "complex('nanj')"),
    ],
)
def test_a_value_is_written_as_a_person_types_it(
    program: ModuleType, value: object, text: str
) -> None:
    assert render_call("f", call_of(program, [value])) == f"f([{text}])"


def test_a_factory_is_written_without_the_module_that_defines_it() -> None:
    values: Message = {
        "roots": [["object", 0]],
        "nodes": [[0, "defaultdict", "shop:Line", []]],
    }
    call: Call = {"values": values, "names": []}
    assert render_call("f", call) == "f(defaultdict(Line, {}))"


@pytest.mark.parametrize(
    "value",
    [
        *(None, -3, 2.5, "a\n'b", "datetime.date{", (1,), [], {1: {2}}, set(), frozenset([1])),
        *(date(2024, 3, 29), datetime(2024, 3, 29, tzinfo=UTC), timedelta(-1), [UTC, time(1)]),
        *(Decimal("1.5"), Fraction(1, 3), Counter("aab"), OrderedDict(b=[1], a={2: Counter("a")})),
        *(defaultdict(list, {"a": [1]}), -float("inf"), 1 + 2j, b"x", range(3)),
    ],
)
def test_a_result_is_written_as_python(value: object) -> None:
    text = render_result(Output(kind="value", text=canonical(value), arguments=""))
    assert eval(text.removeprefix("returns "), dict(LIBRARY)) == value
    assert "datetime.date(" not in text


def test_objects_are_written_with_their_fields(program: ModuleType) -> None:
    module: Any = program
    line, point = module.Line(), module.Point(1, 2)
    assert (
        render_call("Line.total", call_of(program, line, [point], module.Colour.RED))
        == "Line(price=9.5, count=2).total([Point(1, 2)], Colour.RED)"
    )
    line.price = line
    assert render_call("f", call_of(program, line)) == "f(Line(price=..., count=2))"
    assert render_call("f", call_of(program, iter([1]))) == "f(iter([1]))"


def test_results_are_predicates(program: ModuleType) -> None:
    message = MESSAGE_MARK + json.dumps(
        Wire(ProgramNames(program)).encode([vars(program)["Line"]()])
    )
    value = Output(kind="value", text=message, arguments="[[1], datetime.date(2024, 3, 29)]")
    assert render_result(value) == "returns [Line(price=9.5, count=2)]"
    assert render_arguments(value) == "[[1], date(2024, 3, 29)]"
    assert render_result(Output(kind="raise", text="KeyError", arguments="")) == "raises KeyError"
    assert render_result(None) == "does not end in time"
    assert "cannot be compared" in render_result(Output(kind="strange", text="x", arguments=""))
