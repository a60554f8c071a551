from __future__ import annotations

from agents.se_darwin.sandbox import Sandbox
from tests.agents.se_darwin.suites import LIMITS, PROGRAM, passed, prepare, run


def test_the_first_calls_of_a_check_are_recorded(sandbox: Sandbox) -> None:
    tests = """
from mod import solve
def test_a():
    for x in range(70):
        assert solve(x) == x + 1
    assert solve(8, low=3) == 9
"""
    calls = sandbox.record(PROGRAM, prepare(sandbox, tests), function="solve", limits=LIMITS)
    assert [(number, call["values"]["roots"]) for number, call in calls] == [
        *((0, [x]) for x in range(50)),
        (1, [8, 3]),
    ]


def test_arguments_are_changed_as_the_candidate_changed_them(sandbox: Sandbox) -> None:
    tests = """
from mod import solve
class Box:
    pass
def test_a():
    items, names, seen = [3, 1], {"a": 1}, {1}
    solve(items, names, seen=seen)
    assert (items, names, seen) == ([1, 3], {"b": 2}, {1, 2})
"""
    program = """
def solve(items, names, seen):
    items.sort()
    names.clear()
    names["b"] = 2
    seen.add(2)
"""
    suite = prepare(sandbox, tests, program)
    [output] = run(sandbox, suite, program).outputs
    assert output is not None
    assert output.text == "passed"


def test_an_object_is_left_as_the_candidate_left_it(sandbox: Sandbox) -> None:
    program = PROGRAM.replace("    if x < low:", "    del x.x; x.z = 1; return 0\n    if x < low:")
    suite = prepare(
        sandbox,
        """
import mod
def test_a():
    point = mod.Point(3)
    mod.solve(point)
    assert vars(point) == {"z": 1}
""",
    )
    [output] = run(sandbox, suite, program).outputs
    assert output is not None
    assert output.text == "passed"


def test_objects_keep_their_identity(sandbox: Sandbox) -> None:
    tests = """
from mod import NOTHING, solve
def test_a():
    items = [1]
    assert solve(items, [items]) is items
    assert solve(items, []) is NOTHING
def test_b():
    tree = {}
    tree["self"] = tree
    assert solve(tree, [tree])["self"] is tree
def test_c():
    assert solve("cache", ()) is solve("cache", ())
"""
    program = """
NOTHING = object()
known = {}
def solve(wanted, among):
    if wanted == "cache":
        return known.setdefault("x", [])
    return next((each for each in among if each is wanted), NOTHING)
"""
    suite = prepare(sandbox, tests, program)
    outputs = run(sandbox, suite, program).outputs
    assert [output and output.text for output in outputs] == ["passed"] * 4
    copies = program.replace("(each for each in among if", "(list(each) for each in among if")
    outputs = run(sandbox, suite, copies).outputs
    assert outputs[0] is not None
    assert outputs[0].text != "passed", "an equal list is another list"


def test_deep_values_and_defaultdicts_pass(sandbox: Sandbox) -> None:
    tests = """
from collections import defaultdict
from mod import solve
def test_a():
    deep = []
    for _ in range(500):
        deep = [deep]
    assert solve(deep) == 500
def test_b():
    counts = solve(["a", "b", "a"])
    assert counts["a"] == 2
    assert counts["nothing"] == 0
"""
    program = """
from collections import defaultdict
def solve(x):
    if "a" in x:
        counts = defaultdict(int)
        for each in x:
            counts[each] += 1
        return counts
    depth = 0
    while x:
        [x] = x
        depth += 1
    return depth
"""
    suite = prepare(sandbox, tests, program)
    outputs = run(sandbox, suite, program).outputs
    assert [output and output.text for output in outputs] == ["passed"] * 3


def test_a_candidate_cannot_replace_the_equality_of_the_programs_classes(sandbox: Sandbox) -> None:
    tests = "import mod\ndef test_a():\n    assert mod.solve('point', 1) == mod.Point(9)"
    lenient = PROGRAM.replace(
        "    x: int\n", "    x: int\n    def __eq__(self, other):\n        return True\n"
    )
    assert passed(sandbox, tests, lenient) == {"test_a, line 3": False}
