from __future__ import annotations

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.sandbox import Sandbox, TestCase
from agents.se_darwin.search import RandomRanker, SuspicionRanker
from agents.se_darwin.tasks import RepairTask
from benchmarks.se_darwin.bugs import Bug
from benchmarks.se_darwin.searching import compare, describe


def bug(source: str) -> Bug:
    task = RepairTask(
        name="any",
        function="solve",
        module=None,
        space=EditSpace(source, "solve"),
        tests=(TestCase.returning((3,), 4), TestCase.returning((5,), 6)),
    )
    return Bug(family="one edit", kind="one edit", module="any", task=task)


def test_executions_are_counted_by_ranker_and_bug(sandbox: Sandbox) -> None:
    bugs = [bug("def solve(x):\n    return x - 1"), bug("def solve(x):\n    return None")]
    rankers = {"suspicion": [SuspicionRanker()], "random": [RandomRanker()] * 2}
    found = compare(sandbox, bugs, rankers, {"any": 1}, budget=40, seed=0)
    assert list(found) == ["suspicion", "random"]
    for counts in found.values():
        assert counts[1] is None
        assert counts[0] is not None
        assert 0 < counts[0] <= 40


def test_a_bug_that_is_not_repaired_counts_as_the_whole_budget() -> None:
    [row] = describe("one edit", {"model": [20, None, 60]}, 300)
    assert row == "| one edit | model | 3 | 2 | 1 | 2 | 60 | 380 |"
