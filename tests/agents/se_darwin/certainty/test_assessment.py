"""Assessment of real repairs by the real search."""

from __future__ import annotations

from random import Random

import pytest

from agents.se_darwin.certainty.assessment import MAX_CANDIDATES, Assessment, Assessor
from agents.se_darwin.edits import EditSpace
from agents.se_darwin.sandbox import Limits, Sandbox, TestCase
from agents.se_darwin.search.evolution import Evolution
from agents.se_darwin.search.policy import Policy
from agents.se_darwin.search.ranker import SuspicionRanker
from agents.se_darwin.solution.request import EvolutionRequest
from agents.se_darwin.tasks import RepairTask

pytestmark = pytest.mark.process  # searches for seconds

CODE = """
def total(amounts, threshold):
    amount = sum(amounts)
    if amount > threshold:
        amount -= 10
    return amount
"""


RAISES = TestCase(arguments=(["a"], 100), kind="raise", expected="TypeError")


def make_task(*cases: tuple[tuple[object, ...], object]) -> RepairTask:
    return RepairTask(
        name="prices.total",
        function="total",
        module=None,
        space=EditSpace(CODE, "total"),
        tests=(*(TestCase.returning(arguments, value) for arguments, value in cases), RAISES),
        limits=Limits(cpu_seconds=0.05, wall_seconds=1.0),
    )


def assess(
    task: RepairTask, sandbox: Sandbox, *, stopped: bool = False, seconds: float = 10.0
) -> Assessment:
    ranker = SuspicionRanker()
    evolution = Evolution(task, sandbox, Random(0), Policy(ranker=ranker, batch=16))
    while not evolution.archive.best.fixed:
        assert evolution.run_generation()
    found = evolution.minimise(evolution.archive.best)
    assessor = Assessor(
        task=task,
        sandbox=sandbox,
        ranker=ranker,
        seed=0,
        seconds=seconds,
        stop=lambda: stopped,
    )
    return assessor.assess(evolution, found)


@pytest.fixture(scope="module")
def few_tests(sandbox: Sandbox) -> Assessment:
    return assess(make_task((([100], 100), 90), (([30], 100), 30)), sandbox)


def test_other_repairs_are_found_and_compared(few_tests: Assessment) -> None:
    repairs = few_tests.rivals.repairs
    assert len(repairs) > 1
    assert all(each.fixed for each in repairs)
    assert len({each.source for each in repairs}) == len(repairs)
    assert set(few_tests.rivals.origins) == set(repairs[1:])
    assert 0 < few_tests.rivals.candidates <= MAX_CANDIDATES
    assert sum(each.belief for each in few_tests.candidates) == pytest.approx(1.0)
    assert few_tests.chosen in repairs
    assert 0 < few_tests.differing < len(few_tests.inputs)
    assert not few_tests.note


def test_inputs_on_which_all_programs_fail_are_not_compared(few_tests: Assessment) -> None:
    assert all(
        any(output and output.kind == "value" for output in column)
        for column in zip(*(each.behaviour for each in few_tests.candidates), strict=True)
    )
    assert {len(each.behaviour) for each in few_tests.candidates} == {len(few_tests.inputs)}


def test_a_question_tells_two_of_them_apart(few_tests: Assessment) -> None:
    question = few_tests.question
    assert question is not None
    assert question.call.startswith("total([")
    assert question.ours != question.theirs


def test_many_tests_leave_one_behaviour(sandbox: Sandbox) -> None:
    cases = [(([amount], 100), amount - 10 * (amount >= 100)) for amount in (99, 100, 101, 120, 9)]
    cases += [(([50, 60], 110), 100), (([5], 5), -5), (([5], 6), 5), (([], 0), -10)]
    assessment = assess(make_task(*cases), sandbox, seconds=30.0)
    assert assessment.rivals.candidates > MAX_CANDIDATES, "it is confirmed by further ones"
    assert not assessment.note
    assert assessment.differing == 0
    assert assessment.question is None
    assert assessment.chosen.fixed
    assert assessment.unchanged == 0


def test_a_special_case_for_the_only_failing_check_changes_nothing_else(sandbox: Sandbox) -> None:
    source = "def solve(n):\n    return n * 2\n"
    task = RepairTask(
        name="solve",
        function="solve",
        module=None,
        space=EditSpace(source, "solve"),
        tests=tuple(TestCase.returning((n,), wanted) for n, wanted in ((1, 9), (40, 80), (7, 14))),
        limits=Limits(cpu_seconds=0.05, wall_seconds=1.0),
    )
    special = source.replace("return", "if n == 1: return 9\n    return")
    [repair] = task.evaluate(sandbox, [(frozenset(), special)])
    assert repair.fixed
    ranker = SuspicionRanker()
    evolution = Evolution(task, sandbox, Random(0), Policy(ranker=ranker))
    assessor = Assessor(task=task, sandbox=sandbox, ranker=ranker, seed=0, seconds=2.0)
    assessment = assessor.assess(evolution, repair)
    assert assessment.chosen is repair
    assert assessment.unchanged == sum(each.changes > 0 for each in assessment.inputs) > 20


def test_functions_as_results_are_not_compared(sandbox: Sandbox) -> None:
    request = EvolutionRequest(
        code="def solve(n):\n    return None if n < 5 else lambda: n - 1\n",
        function="solve",
        test_code="from program import solve\ndef test_a():\n    assert solve(9)() == 10\n"
        "    assert solve(3) is None\n",
    )
    assessment = assess(request.task(sandbox, 5.0), sandbox, seconds=3.0)
    results = [output for output in assessment.candidates[0].behaviour if output]
    assert {output.text for output in results} == {"None"}
    assert assessment.unchanged == 0, "what its functions do is not known"


def test_an_assessment_without_time_keeps_the_repair(sandbox: Sandbox) -> None:
    assessment = assess(make_task((([100], 100), 90)), sandbox, stopped=True)
    assert assessment.rivals.candidates == 0
    assert assessment.chosen is assessment.rivals.repairs[0]
    assert assessment.note.startswith("the time was up")


DOCUMENTED = """
def total(amounts, threshold):
    '''
    >>> total([100], 100)
    {}
    >>> total([150], 100)
    {}
    '''
    amount = sum(amounts)
    if amount < threshold:
        amount -= 10
    return amount
"""


@pytest.mark.parametrize(("shown", "operator"), [(100, ">"), (90, ">="), (7, None)])
def test_a_docstring_that_the_program_contradicts_decides_between_repairs(
    sandbox: Sandbox, shown: int, operator: str | None
) -> None:
    tests = "assert total([150], 100) == 140\n    assert total([30], 100) == 30"
    request = EvolutionRequest(
        code=DOCUMENTED.format(shown, 140),
        function="total",
        test_code=f"from program import total\ndef test_a():\n    {tests}\n",
    )
    assessment = assess(request.task(sandbox, 5.0), sandbox, seconds=60.0 if operator else 1.0)
    assert assessment.examples == 2
    if operator is None:  # no repair does that, and it is asked about
        assert list(assessment.contradicted) == ["total([100], 100)"]
    else:
        assert f"amount {operator} threshold" in assessment.chosen.source
        assert list(assessment.contradicted) == []


def test_a_docstring_that_the_program_agrees_with_does_not_count(sandbox: Sandbox) -> None:
    request = EvolutionRequest(
        code=DOCUMENTED.format(100, 150),
        function="total",
        test_code="from program import total\ndef test_a():\n    assert total([150], 100) == 140\n",
    )
    assessment = assess(request.task(sandbox, 5.0), sandbox, seconds=1.0)
    assert assessment.examples == 0
    assert list(assessment.contradicted) == []
