from __future__ import annotations

import ast
from itertools import islice
from random import Random

import pytest

from agents.se_darwin.corpus import load_subjects
from agents.se_darwin.faults import draw_faults
from agents.se_darwin.faults.draw import FAULT_KINDS

EVERYTHING = """
def f(items, low, high):
    total = 0
    for index in range(low, high):
        item = items[index + 1]
        if not item:
            continue
        if item > 3 and item < 9:
            total += abs(item) - 10
        else:
            total = min(total, item)
            items.append(item)
    if high:
        items.append(low)
    items.append(total)
    total = total * 2
    return items[low:high] if total == 0 else 'abc'
"""


def test_every_kind_of_fault_is_made() -> None:
    faults = list(draw_faults(EVERYTHING, "f", Random(0)))
    # The value after a loop is returned from inside it only if the loop is followed by a return.
    assert {fault.kind for fault in faults} == {*FAULT_KINDS} - {"return early"}


@pytest.mark.process
def test_every_fault_is_another_program_in_normal_form() -> None:
    subjects = load_subjects()[::12]
    for subject in subjects:
        faults = list(islice(draw_faults(subject.source, subject.function, Random(0)), 40))
        sources = [fault.source for fault in faults]
        assert len({subject.source, *sources}) == 1 + len(sources)
        for source in sources:
            assert ast.unparse(ast.parse(source)) == source
            compile(source, "", "exec")


def test_the_same_state_gives_the_same_faults() -> None:
    drawn = [
        [fault.source for fault in islice(draw_faults(EVERYTHING, "f", Random(seed)), 9)]
        for seed in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("return a and b", "return a"),
        ("return max(a, b)", "return b"),
        ("return range(a, b)", "return range(b)"),
        ("return b[a]", "return b[a - 2]"),
        ("return b[1:a]", "return b[1:]"),
        ("if a:\n    b = 1\nelse:\n    b = 2\nreturn b", "if a:\n    b = 1\nreturn b"),
        (
            "for each in b:\n    a += 1\n    b = a\nreturn b",
            "for each in b:\n    a += 1\nb = a\nreturn b",
        ),
        (
            "for each in b:\n    a += 1\nb = a\nreturn b",
            "for each in b:\n    a += 1\n    b = a\nreturn b",
        ),
        (
            "for each in b:\n    a += 1\nreturn a",
            "for each in b:\n    a += 1\n    return a\nreturn a",
        ),
        (
            "b = a[0]\nfor each in a:\n    b += each\nreturn b",
            "b = 0\nfor each in a:\n    b += each\nreturn b",
        ),
    ],
)
def test_typical_faults_are_among_them(right: str, wrong: str) -> None:
    source, broken = (
        ast.unparse(ast.parse("def f(a, b):\n    " + body.replace("\n", "\n    ")))
        for body in (right, wrong)
    )
    assert broken in {fault.source for fault in draw_faults(source, "f", Random(0))}


def test_a_function_that_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="no function 'g'"):
        next(draw_faults(EVERYTHING, "g", Random(0)))
