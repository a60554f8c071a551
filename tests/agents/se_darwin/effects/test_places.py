from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.effects.places import Places
from agents.se_darwin.fork_server.probing import Probe

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


def probes(code: str, function: str) -> dict[str, Probe | None]:
    space = EditSpace(code, function)
    places = Places(space)
    return {str(edit).partition(": ")[2]: places.probe(edit) for edit in space.edits}


def texts(probe: Probe | None) -> tuple[str, str, str]:
    assert probe is not None
    return probe["new"]["kind"], probe["old"]["text"], probe["new"]["text"]


def test_each_edit_changes_the_smallest_part_that_can_be_evaluated() -> None:
    found = probes(CODE, "grow")
    assert texts(found["comparison Gt -> GtE"]) == ("test", "item > 2", "item >= 2")
    assert texts(found["constant 0 -> 1"]) == ("statements", "total = 0", "total = 1")
    guarded = "statement_guarded nothing -> if not (item > 2)"
    assert texts(found[guarded]) == ("test", "True", "not item > 2")
    [inserted] = [each for name, each in found.items() if name.endswith("if not items: return 0")]
    assert texts(inserted) == ("statements", "pass", "if not items:\n    return 0")


def test_a_loop_is_not_run() -> None:
    space = EditSpace(CODE, "grow")
    places = Places(space)
    removed = [each for each in space.edits if each.kind == "statement_removed"]
    loops = [each for each in removed if each.old.startswith(("while", "for"))]
    assert loops
    assert all(places.probe(each) is None for each in loops)
    found = [each for each in map(places.probe, space.edits) if each is not None]
    assert len(found) > 0.8 * len(space.edits)
    for probe in found:
        for snippet in (probe["old"], probe["new"]):
            if snippet["kind"] == "statements":
                parsed = ast.walk(ast.parse(snippet["text"]))
                assert not any(isinstance(node, ast.For | ast.While) for node in parsed)


def test_probes_leave_the_program_as_it_is() -> None:
    space = EditSpace(CODE, "grow")
    before = [space.program([each]) for each in space.edits]
    places = Places(space)
    for each in space.edits:
        places.probe(each)
    assert [space.program([each]) for each in space.edits] == before


def test_visits_are_made_before_statements_in_conditions_of_loops_and_after_blocks() -> None:
    seen: list[int] = []
    namespace: dict[str, Callable[..., object]] = {"__visit__": seen.append}
    exec(Places(EditSpace(CODE, "grow")).instrumented(), namespace)
    assert namespace["grow"]([1, 3], 5) == 8
    counts = sorted(Counter(seen).values())
    assert counts == [1, 1, 1, *[2] * 6, 3, 4, 4]  # the condition three times, the `if` four times


def test_what_a_generator_yields_is_noted() -> None:
    found = [each for each in probes(GENERATOR, "each").values() if each is not None]
    assert texts(found[0]) == ("statements", "pass", "__yield__(item)")
    assert not any("yield " in each["old"]["text"] + each["new"]["text"] for each in found)
