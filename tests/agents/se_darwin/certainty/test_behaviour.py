from __future__ import annotations

from agents.se_darwin.certainty.behaviour import Replay, key
from agents.se_darwin.certainty.inputs import ProgramInput
from agents.se_darwin.edits import EditSpace
from agents.se_darwin.sandbox import Limits, Sandbox, TestCase
from agents.se_darwin.tasks import RepairTask

CODE = """
def solve(items, limit):
    while limit == 2:
        pass
    items.append(limit)
    return sum(items)
"""


def make_replay(sandbox: Sandbox) -> Replay:
    calls = [([1], 1), ([1], 2), ([], 3), (["a"], 1)]
    task = RepairTask(
        name="solve",
        function="solve",
        module=None,
        space=EditSpace(CODE, "solve"),
        tests=tuple(TestCase.returning(arguments, 0) for arguments in calls),
        limits=Limits(cpu_seconds=0.05, wall_seconds=1.0),
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


def test_the_caller_can_stop_a_comparison(sandbox: Sandbox) -> None:
    assert make_replay(sandbox).run([CODE], stop=lambda: True) == []
