from __future__ import annotations

import pytest

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.sandbox import TestCase
from agents.se_darwin.tasks import RepairTask

TWO_FAULTS = """
def solve(items, limit):
    total, unused = 1, limit - 5
    for item in items:
        if item < limit:
            total += item
    return total
"""


@pytest.fixture
def two_faults() -> RepairTask:
    """Should sum the items up to and including the limit."""
    calls = [
        (([1, 2, 3], 2), 3),
        (([], 5), 0),
        (([5, 6], 6), 11),
        (([4], 1), 0),
        (([9, 1, 9], 8), 1),
        (([7, 7], 7), 14),
    ]
    return RepairTask(
        name="two_faults",
        function="solve",
        module=None,
        space=EditSpace(TWO_FAULTS, "solve"),
        tests=tuple(TestCase.returning(arguments, value) for arguments, value in calls),
        hidden_tests=(TestCase.returning(([3, 2], 3), 5),),
    )
