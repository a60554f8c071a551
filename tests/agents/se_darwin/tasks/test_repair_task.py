from __future__ import annotations

from agents.se_darwin.edits import Edit, EditSpace
from agents.se_darwin.sandbox import Sandbox, TestCase
from agents.se_darwin.tasks import RepairTask

COUNTS = """
import math
math.calls = getattr(math, 'calls', 0) + 1
calls = math.calls
def solve():
    return calls
"""
NONE = frozenset[Edit]()


def test_a_program_that_passes_only_after_another_one_is_no_repair(sandbox: Sandbox) -> None:
    task = RepairTask(
        name="task",
        function="solve",
        module=None,
        space=EditSpace(COUNTS, "solve"),
        tests=(TestCase.returning((), 2),),
    )
    tried = [
        execution.outputs[0]
        for execution in sandbox.screen([COUNTS] * 8, task.tests, function="solve")
    ]
    assert any(map(task.tests[0].passes, tried))
    evaluations = task.screen(sandbox, [(NONE, COUNTS)] * 8)
    assert not any(evaluation.fixed for evaluation in evaluations)
