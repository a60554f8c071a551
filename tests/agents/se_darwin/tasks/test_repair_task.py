from __future__ import annotations

from agents.se_darwin.edits import Edit, EditSpace
from agents.se_darwin.proposals.intake import read_proposal
from agents.se_darwin.sandbox import Sandbox, TestCase
from agents.se_darwin.solution.request import EvolutionRequest
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


def test_a_result_that_cannot_be_sent_is_confirmed_in_a_fresh_process(sandbox: Sandbox) -> None:
    tests = "from program import solve\ndef test_a():\n    assert solve()() == {}"
    for expected, is_repair in ((1, True), (2, False)):
        given = {"code": "def solve():\n    return 0", "function": "solve"}
        request = EvolutionRequest.model_validate({**given, "test_code": tests.format(expected)})
        task = request.task(sandbox, 1.0)
        assert task.suite is not None
        assert not task.suite.within
        returns = COUNTS.replace("return calls", "return lambda: calls")
        evaluations = task.screen(sandbox, [(NONE, returns)] * 8)
        assert any(evaluation.fixed for evaluation in evaluations) is is_repair
        assert all(each.shares_process for each in evaluations if each.fixed)
        written = read_proposal(task.space, "def solve():\n    return lambda: 1")
        assert task.is_written(written.edits)
        [alone] = task.screen(sandbox, [(written.edits, written.source)])
        assert alone.fixed is is_repair
        assert not is_repair or alone.shares_process, "so it is weakly supported"
