from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from agents.se_darwin.certainty.preconditions import Preconditions
from agents.se_darwin.fork_server.wire import Call, ProgramNames, Wire


def call_of(*arguments: object) -> Call:
    return {"values": Wire(ProgramNames(ModuleType("program"))).encode(*arguments), "names": []}


def values_of(call: Call) -> list[Any]:
    return Wire(ProgramNames(ModuleType("program")), first=1).decode(call["values"])


@pytest.mark.parametrize(
    ("recorded", "given", "restored"),
    [
        ([[1, 3, 4], [2, 5.5, 9]], [3, 1, 2.5], [1, 2.5, 3]),
        ([["d", "c", "b", "a"]], ["x", "z", "y"], ["z", "y", "x"]),
        ([[1, 3, 4], [5, 2, 9]], [3, 1, 2], [3, 1, 2]),
        ([[1, 2], [4]], [3, 1, 2], [3, 1, 2]),
        ([[7, 7, 7, 7, 7]], [3, 1, 2], [3, 1, 2]),
        ([[1, 3, 4], [1, 3, 4]], [3, 1, 2], [3, 1, 2]),
        ([[1, 3, 4], [2, float("nan"), 9]], [3, 1, 2], [3, 1, 2]),
        ([[1, 3, 4], [2, 5, 9]], [3, "a", 2], [3, "a", 2]),
    ],
)
def test_what_is_sorted_in_all_calls_is_sorted(
    recorded: list[list[object]], given: list[object], restored: list[object]
) -> None:
    preconditions, call = Preconditions([call_of(each) for each in recorded]), call_of(given)
    preconditions.restore(call)
    assert values_of(call) == [restored]
    assert preconditions.hold(call) == (given != [3, "a", 2])


def test_lists_that_always_have_equal_lengths_must_have_them() -> None:
    recorded = [call_of([1], (2,), [3]), call_of([4, 0], (5, 6), []), call_of([], (), [7])]
    preconditions = Preconditions(recorded)
    assert preconditions.hold(call_of([9, 1, 2], (1, 3, 0), []))
    assert not preconditions.hold(call_of([9, 1, 2], (1, 3), [5]))
    assert preconditions.hold(call_of([9], None, []))
    assert Preconditions(recorded[:2]).hold(call_of([9], (1, 3), []))
    assert Preconditions([]).hold(call_of([9], (1, 3)))
