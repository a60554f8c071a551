import pytest

from agents.se_darwin.edits import EditSpace


@pytest.mark.parametrize(
    ("kind", "broken", "right"),
    [
        ("regrouped", "a * b + c", "a * (b + c)"),
        ("regrouped", "a * (b + c)", "a * b + c"),
        ("regrouped", "a - b - c", "a - (b - c)"),
        ("regrouped", "a - (b - c)", "a - b - c"),
        ("regrouped", "a // b * c", "a // (b * c)"),
        ("regrouped", "a or (b and c)", "(a or b) and c"),
        ("regrouped", "(a or b) and c", "a or (b and c)"),
        ("regrouped", "a + b if c else d", "a + (b if c else d)"),
        ("regrouped", "a + (b if c else d)", "a + b if c else d"),
        ("regrouped", "a if b else c + d", "(a if b else c) + d"),
        ("regrouped", "(a if b else c) + d", "a if b else c + d"),
        ("call_moved", "len(a) * b", "len(a * b)"),
        ("call_moved", "int(a * b)", "int(a) * b"),
        ("call_moved", "round(a / b, 2)", "a / round(b, 2)"),
        ("call_moved", "a - int(b)", "int(a - b)"),
        ("call_moved", "a + b.strip()[0].lower()", "(a + b.strip()[0]).lower()"),
        ("call_moved", "(a + b).lower()", "a + b.lower()"),
        ("call_moved", "not (a and b)", "not a and b"),
        ("call_moved", "not a and b", "not (a and b)"),
        ("call_moved", "-(a + b)", "-a + b"),
        ("call_moved", "-a % b", "-(a % b)"),
        ("call_added", "a < b", "len(a) < len(b)"),
        ("call_added", "a == b", "a.lower() == b.lower()"),
        ("call_added", "a == b", "sorted(a) == sorted(b)"),
        ("call_added", "a[0] < b[0]", "int(a[0]) < int(b[0])"),
        ("rounding", "a // b", "-(-a // b)"),
        ("rounding", "-(-a // b)", "a // b"),
        ("rounding", "a // b", "round(a / b)"),
        ("rounding", "a / b", "int(a / b)"),
        ("rounding", "a / b", "-(-a // b)"),
        ("rounding", "a % b", "(a - 1) % b + 1"),
    ],
)
def test_an_expression_is_rearranged(kinds_that_repair, kind: str, broken: str, right: str) -> None:
    frame = "def solve(a, b, c, d):\n    return {}"
    assert kind in kinds_that_repair(frame.format(broken), frame.format(right))


def test_a_ceiling_of_the_module_math_needs_its_import(kinds_that_repair) -> None:
    broken, right = (
        "def solve(a, b):\n    return a / b",
        "def solve(a, b):\n    return math.ceil(a / b)",
    )
    assert not kinds_that_repair(broken, right)
    assert "rounding" in kinds_that_repair(f"import math\n{broken}", f"import math\n{right}")


@pytest.mark.parametrize("expression", ["a + b + c", "a * b * c", "a + (b + c)"])
def test_parentheses_without_effect_are_not_moved(expression: str) -> None:
    space = EditSpace(f"def solve(a, b, c):\n    return {expression}", "solve")
    assert not [edit for edit in space.edits if edit.kind == "regrouped"]


def test_edits_within_what_is_moved_are_kept() -> None:
    space = EditSpace("def solve(a, b):\n    return (a + 1) // b", "solve")
    outer = next(e for e in space.edits if e.kind == "rounding" and e.new == "-(-a // b)")
    inner = next(e for e in space.edits if e.kind == "arithmetic" and e.old == "Add")
    assert space.program([outer, inner]).count("return -(-") == 1
    assert "a + 1" not in space.program([outer, inner])


def test_a_call_that_another_edit_leaves_without_arguments_is_not_moved() -> None:
    space = EditSpace("def f(a, b):\n    return a - int(b)\n", "f")
    moved = next(each for each in space.edits if each.kind == "call_moved")
    removed = next(each for each in space.edits if each.kind == "argument_removed")
    assert space.program({moved, removed}) == space.program({removed})
