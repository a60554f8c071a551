from __future__ import annotations

import time
from dataclasses import replace

import pytest

from agents.se_darwin.certainty.behaviour import Replay, key
from agents.se_darwin.certainty.inputs import ProgramInput
from agents.se_darwin.edits import EditSpace
from agents.se_darwin.sandbox import Limits, Output, Sandbox, TestCase
from agents.se_darwin.tasks import RepairTask

CODE = """
def solve(items, limit):
    while limit == 2:
        pass
    items.append(limit)
    return sum(items)
"""


CALLS = [([1], 1), ([1], 2), ([], 3), (["a"], 1)]


def make_replay(
    sandbox: Sandbox, calls: list[tuple[list[object], int]] = CALLS, seconds: float = 1.0
) -> Replay:
    task = RepairTask(
        name="solve",
        function="solve",
        module=None,
        space=EditSpace(CODE, "solve"),
        tests=tuple(TestCase.returning(arguments, 0) for arguments in calls),
        limits=Limits(cpu_seconds=0.05 * seconds, wall_seconds=seconds),
    )
    inputs = [
        ProgramInput(call=call, origin=number, changes=0)
        for number, call in task.record(sandbox, CODE)
    ]
    return Replay(task=task, sandbox=sandbox, inputs=inputs, recorded=4)


def test_a_program_that_hangs_on_one_input_is_run_on_the_others(sandbox: Sandbox) -> None:
    [behaviour] = make_replay(sandbox).run([CODE])
    assert [key(each) for each in behaviour] == [
        ("value", "2", "[[1, 1], 1]"),
        ("unfinished", "", ""),
        ("value", "3", "[[3], 3]"),
        ("raise", "TypeError", ""),
    ]


@pytest.mark.parametrize(("hangs", "results"), [(2, 4), (3, 3), (4, 3)])
def test_inputs_on_which_a_program_was_not_run_have_no_result(
    sandbox: Sandbox, hangs: int, results: int
) -> None:
    calls: list[tuple[list[object], int]] = [([], 2) for _ in range(hangs)] + [([], 1), ([], 3)]
    [behaviour] = make_replay(sandbox, calls).run([CODE])
    assert [key(each)[0] for each in behaviour] == (["unfinished"] * hangs + ["value"] * 2)[
        :results
    ]


def test_a_program_does_not_run_longer_than_the_deadline(sandbox: Sandbox) -> None:
    deadline = time.monotonic() + 0.3
    replay = replace(make_replay(sandbox, [([], 2)], seconds=600.0), deadline=deadline)
    assert not any(replay.run([CODE], stop=lambda: time.monotonic() >= deadline))
    assert time.monotonic() < deadline + 20.0  # its own limit is 30 s of CPU time


def test_the_caller_can_stop_a_comparison(sandbox: Sandbox) -> None:
    assert make_replay(sandbox).run([CODE], stop=lambda: True) == []


def test_truths_count_as_the_numbers_that_they_equal() -> None:
    true, one, zero = (
        Output(kind="value", text=text, arguments="[]") for text in ("True", "1", "0")
    )
    assert key(true) == key(one) != key(zero)
