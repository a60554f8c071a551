"""Tables of the tests' values, and right repairs with constants that the tests contain."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from agents.se_darwin.certainty.assessment import MAX_INPUTS
from agents.se_darwin.certainty.behaviour import Replay
from agents.se_darwin.certainty.inputs import make_inputs
from agents.se_darwin.certainty.memorised import Memory
from agents.se_darwin.edits import EditSpace
from agents.se_darwin.sandbox import Limits, Sandbox, TestCase
from agents.se_darwin.tasks import RepairTask

pytestmark = pytest.mark.process

Calls = Sequence[tuple[tuple[object, ...], object]]
CALLS: Calls = (((31,), 961), ((45,), 2025), ((0,), 0), ((7,), 49), ((12,), 144))
LIMITS = Limits(cpu_seconds=0.5, wall_seconds=5.0)


def is_memorised(sandbox: Sandbox, given: str, repair: str, calls: Calls = CALLS) -> bool:
    task = RepairTask(
        name="solve",
        function="solve",
        module=None,
        space=EditSpace(f"def solve(n):\n    {given}\n", "solve"),
        tests=tuple(TestCase.returning(arguments, value) for arguments, value in calls),
        limits=LIMITS,
    )
    source = f"def solve(n):\n    {repair}\n"
    root, repaired = task.evaluate(
        sandbox, [(frozenset(), task.space.source), (frozenset(), source)], coverage=True
    )
    assert repaired.fixed
    assert not root.fixed
    recorded = task.record(sandbox, source)
    inputs = make_inputs([call for _, call in recorded], MAX_INPUTS, Random(0))
    replay = Replay(task=task, sandbox=sandbox, inputs=inputs, recorded=len(recorded))
    before, after = replay.run([root.source, source])
    return Memory.of(task, root, recorded).is_repeated(repaired, after, before, inputs)


@pytest.mark.parametrize(
    "repair",
    [
        "return {31: 961, 45: 2025, 0: 0, 7: 49, 12: 144}[n]",
        "return {31: 961, 45: 2025, 7: 49, 12: 144}.get(n, 0)",
        "return {31: 961, 45: 2025, 7: 49, 12: 144}.get(n, n * 3)",
        "return 961 if n == 31 else 2025 if n == 45 else 49 if n == 7 else 144 if n == 12 else 0",
        "return n * n if n in (31, 45, 7, 12) else n and str(n)",
        "return {m: m * m for m in (62 // 2, 90 // 2, 0, 7, 6 * 2)}[n]",
    ],
)
def test_a_table_of_the_tests_is_seen(sandbox: Sandbox, repair: str) -> None:
    assert is_memorised(sandbox, "return str(n)", repair)


@pytest.mark.parametrize(
    ("given", "repair", "calls"),
    [
        ("return str(n)", "return n * n", CALLS),
        ("return n > 11", "return n > 12", (((12,), False), ((13,), True), ((30,), True))),
        ("return n[0]", "return n[0] if n else 'none'", ((([],), "none"), (([3, 4],), 3))),
        (
            "return 'PM' if n > 12 else 'AM'",
            "return 'PM' if n >= 12 else 'AM'",
            (((12,), "PM"), ((3,), "AM"), ((15,), "PM")),
        ),
        (
            "return n * 1000",
            "return n * 1024",
            (((3,), 3072), ((10,), 10240), ((1,), 1024)),
        ),
    ],
)
def test_a_repair_that_computes_is_not_suspected(
    sandbox: Sandbox, given: str, repair: str, calls: Calls
) -> None:
    assert not is_memorised(sandbox, given, repair, calls)
