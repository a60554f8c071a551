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
        ("return str(n)", "...\n    t: tuple[int, ...] = (n,)\n    return n * t[0]", CALLS),
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


ROMAN = """
    out = ""
    for value, sign in ((10, "X"), (5, "V"), (1, "I")):
        out += sign * (n // value)
        n %= value
    return out"""
NUMERALS: Calls = tuple(
    ((n,), text) for n, text in {3: "III", 8: "VIII", 4: "IV", 9: "IX", 14: "XIV", 20: "XX"}.items()
)
FIZZ: Calls = tuple(
    ((n,), text)
    for n, text in {
        **{1: "1", 3: "fizz", 5: "buzz", 6: "fizz", 10: "buzz"},
        **{15: "fizzbuzz", 30: "fizzbuzz"},
    }.items()
)
PLURALS: Calls = tuple(
    ((word,), plural)
    for word, plural in {
        **{"cat": "cats", "bus": "buses", "city": "cities"},
        **{"boy": "boys", "box": "boxes", "man": "men"},
    }.items()
)


@pytest.mark.parametrize(
    ("given", "repair", "calls"),
    [
        (
            ROMAN,
            "if 3 < n < 5: return 'IV'\n    if 8 < n < 10: return 'IX'\n"
            "    if 13 < n < 15: return 'XIV'" + ROMAN,
            NUMERALS,
        ),
        (
            ROMAN,
            "t = ' I II III IV V VI VII VIII IX X XI XII XIII XIV'.split(' ')\n"
            "    if n < len(t): return t[n]" + ROMAN,
            NUMERALS,
        ),
        (
            "return str(n)",
            "if 2 < n < 4 or 5 < n < 7: return 'fizz'\n"
            "    if 4 < n < 6 or 9 < n < 11: return 'buzz'\n"
            "    if n > 14: return 'fizzbuzz'\n    return str(n)",
            FIZZ,
        ),
        (
            "return n + 's'",
            "if len(n) == 4: return 'cities'\n    if n.startswith('bu'): return 'buses'\n"
            "    if n[2:] == 'x': return 'boxes'\n    if n.startswith('m'): return 'men'\n"
            "    return n + 's'",
            PLURALS,
        ),
    ],
)
def test_special_cases_for_the_checks_are_seen(
    sandbox: Sandbox, given: str, repair: str, calls: Calls
) -> None:
    assert is_memorised(sandbox, given, repair, calls)


@pytest.mark.parametrize(
    ("given", "repair", "calls"),
    [
        (
            ROMAN,
            "units = {0: '', 1: 'I', 2: 'II', 3: 'III', 4: 'IV', 5: 'V', 6: 'VI', 7: 'VII',"
            " 8: 'VIII', 9: 'IX'}\n    return 'X' * (n // 10) + units[n % 10]",
            NUMERALS,
        ),
        (
            "return str(n)",
            "if n % 15 == 0: return 'fizzbuzz'\n    if n % 5 == 0: return 'buzz'\n"
            "    if n % 3 == 0: return 'fizz'\n    return str(n)",
            FIZZ,
        ),
        (
            "return n + 's'",
            "if n in (t := {'man': 'men', 'foot': 'feet'}): return t[n]\n"
            "    if n.endswith(('s', 'x')): return n + 'es'\n"
            "    if n.endswith('y') and n[-2:-1] not in 'aeiou': return n[:-1] + 'ies'\n"
            "    return n + 's'",
            PLURALS,
        ),
    ],
)
def test_tables_and_branches_that_compute_are_not_suspected(
    sandbox: Sandbox, given: str, repair: str, calls: Calls
) -> None:
    assert not is_memorised(sandbox, given, repair, calls)
