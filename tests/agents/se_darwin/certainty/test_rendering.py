from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from types import ModuleType
from typing import Any

import pytest

from agents.se_darwin.certainty.rendering import render_arguments, render_call, render_result
from agents.se_darwin.fork_server.wire import MESSAGE_MARK, Call, ProgramNames, Wire
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


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, -(1 << 60), 2.5, "a'b", b"x", Decimal("1.5")),
        *([], [1, [2]], (), (1,), (1, 2), set(), {1}, {"a": 1, 2: []}),
        *(frozenset([1]), deque([1, 2]), OrderedDict(a=1), Counter("aa"), bytearray(b"x")),
        *(defaultdict(list, {"a": [1]}), range(1, 5, 2)),
    ],
)
def test_a_call_is_written_as_python(program: ModuleType, value: Any) -> None:
    text = render_call("f", call_of(program, value, key=value))
    names = {each.__name__: each for each in (OrderedDict, Counter, defaultdict, deque, Decimal)}
    assert eval(text, names | {"f": lambda given, key: (given, key)}) == (value, value)


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
    value = Output(kind="value", text=message, arguments="[[1]]")
    assert render_result(value) == "returns [Line(price=9.5, count=2)]"
    assert render_arguments(value) == "[[1]]"
    assert render_result(Output(kind="raise", text="KeyError", arguments="")) == "raises KeyError"
    assert render_result(None) == "does not end in time"
    assert "cannot be compared" in render_result(Output(kind="strange", text="x", arguments=""))
