from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable

import pytest

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.effects.places import Places
from agents.se_darwin.fork_server.tracing import Trace

CODE = '''
def grow(items, most):
    """Text."""
    total = 0
    while total < most:
        for item in items:
            if item > 2:
                total += item
            else:
                total += 1
    return total
'''
GENERATOR = "def each(items):\n    for item in items:\n        yield item\n"


def traces(code: str, function: str) -> dict[str, Trace | None]:
    space = EditSpace(code, function)
    places = Places(space.source, function)
    return {str(edit): places.trace(space.program([edit])) for edit in space.edits}


def texts(trace: Trace | None) -> tuple[str, str, str]:
    assert trace is not None
    return trace["new"]["kind"], trace["old"]["text"], trace["new"]["text"]


def test_each_edit_changes_the_smallest_part_that_can_be_evaluated() -> None:
    found = traces(CODE, "grow")
    assert texts(found["line 6: comparison Gt -> GtE"]) == ("test", "item > 2", "item >= 2")
    assert texts(found["line 3: constant 0 -> 1"]) == ("statements", "total = 0", "total = 1")
    guarded = "line 7: statement_guarded nothing -> if not (item > 2)"
    assert texts(found[guarded]) == ("test", "True", "not item > 2")
    [inserted] = [each for name, each in found.items() if name.endswith("if not items: return 0")]
    assert texts(inserted) == ("statements", "pass", "if not items:\n    return 0")


def test_a_loop_is_not_run() -> None:
    space = EditSpace(CODE, "grow")
    places = Places(space.source, "grow")
    variants = {each: space.program([each]) for each in space.edits}
    removed = [each for each in space.edits if each.kind == "statement_removed"]
    loops = [each for each in removed if each.old.startswith(("while", "for"))]
    assert loops
    assert all(places.trace(variants[each]) is None for each in loops)
    found = [each for each in map(places.trace, variants.values()) if each is not None]
    assert len(found) > 0.8 * len(space.edits)
    for trace in found:
        for snippet in (trace["old"], trace["new"]):
            if snippet["kind"] == "statements":
                parsed = ast.walk(ast.parse(snippet["text"]))
                assert not any(isinstance(node, ast.For | ast.While) for node in parsed)


PLAIN = """
def sort_of(number, most):
    if number < 0:
        sort = 'negative'
    elif number > most:
        sort = 'large'
    return sort
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("number > most", "number >= most", ("test", "number > most", "number >= most")),
        (
            "    return sort",
            "    else:\n        sort = ''\n    return sort",
            (
                "statements",
                "if number > most:\n    sort = 'large'",
                "if number > most:\n    sort = 'large'\nelse:\n    sort = ''",
            ),
        ),
        ("    return", "    most = 1\n    return", ("statements", "pass", "most = 1")),
        ("'large'\n    ", "'large'\n        ", None),
        (
            "    elif",
            "        most = 1\n    elif",
            ("statements", "pass", "most = 1"),
        ),
        ("number < 0", "number < 1", ("test", "number < 0", "number < 1")),
        ("most):", "most=3):", None),
    ],
)
def test_the_lines_that_differ_decide_what_is_compared(
    old: str, new: str, expected: tuple[str, str, str] | None
) -> None:
    source = PLAIN.strip()
    assert source.count(old) == 1
    trace = Places(source, "sort_of").trace(source.replace(old, new))
    if expected is None and new == "most=3):":
        assert trace is None
    elif expected is None:
        assert trace is not None
        assert trace["new"]["text"].endswith("sort = 'large'\n    return sort")
    else:
        assert texts(trace) == expected


def test_visits_are_made_before_statements_in_conditions_of_loops_and_after_blocks() -> None:
    seen: list[int] = []
    namespace: dict[str, Callable[..., object]] = {"__visit__": seen.append}
    exec(Places(CODE, "grow").instrumented(), namespace)
    assert namespace["grow"]([1, 3], 5) == 8
    counts = sorted(Counter(seen).values())
    assert counts == [1, 1, 1, *[2] * 6, 3, 4, 4]  # the condition three times, the `if` four times


def test_what_a_generator_yields_is_noted() -> None:
    found = [each for each in traces(GENERATOR, "each").values() if each is not None]
    assert texts(found[0]) == ("statements", "pass", "__yield__(item)")
    assert not any("yield " in each["old"]["text"] + each["new"]["text"] for each in found)
