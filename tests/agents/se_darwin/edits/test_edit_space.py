from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.se_darwin.corpus import load_subjects
from agents.se_darwin.edits import EDIT_KINDS, Edit, EditSpace

SOURCE = """
import math
LIMIT = 3

def other(x):
    return x + 1

def solve(items, low, high=-1):
    total, count = 0, 1
    name = 'a'
    for item in items[low:]:
        if not item or item.startswith('b') and low < high:
            continue
        if item in ('b', high):
            break
        total += item * 2
        count = min(total, high - low)
        total = total - count
    if total is None:
        return items[-low]
    for index in range(low, high + 1):
        total = f'{name}{index}'
    return max(total, 1.5)
"""


@pytest.fixture(scope="module")
def space() -> EditSpace:
    return EditSpace(SOURCE, "solve")


def changes(space: EditSpace, kind: str) -> set[str]:
    return {
        "\n".join(
            sorted(set(space.program([edit]).split("\n")) - set(space.source.split("\n")))
        ).strip()
        for edit in space.edits
        if edit.kind == kind
    }


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("comparison", "if not item or (item.startswith('b') and low <= high):"),
        ("comparison", "if item not in ('b', high):"),
        ("comparison", "if total is not None:"),
        ("arithmetic", "total += item / 2"),
        ("arithmetic", "total -= item * 2"),
        ("operand_order", "count = min(total, low - high)"),
        ("boolean", "if not item and (item.startswith('b') and low < high):"),
        ("negation", "if item or (item.startswith('b') and low < high):"),
        ("negation", "if not item or (not item.startswith('b') and low < high):"),
        ("sign", "return items[low]"),
        ("sign", "count = min(total, high - -low)"),
        ("offset", "for item in items[low + 1:]:"),
        ("offset", "for index in range(low, high):"),
        ("offset", "for index in range(low - 1, high + 1):"),
        ("constant", "total += item * 3"),
        ("constant", "return max(total, 3.0)"),
        ("string", "name = 'b'"),
        ("string", "name = ''"),
        ("variable", "total += index * 2"),
        ("method", "if not item or (item.endswith('b') and low < high):"),
        ("function", "count = max(total, high - low)"),
        ("argument_order", "for index in range(high + 1, low):"),
        ("element_order", "total, count = (1, 0)"),
        ("slice", "for item in items[:low]:"),
        ("loop_exit", "break"),
        ("assignment", "total = item * 2"),
        ("assignment", "count += min(total, high - low)"),
        ("operand_removed", "total += item"),
        ("operand_removed", "if item.startswith('b') and low < high:"),
        ("call_removed", "count = total"),
        ("index_removed", "for item in items:"),
        ("argument_removed", "return max(total)"),
        ("call_added", "for item in sorted(items[low:]):"),
        ("method_added", "if item.lower() in ('b', high):"),
        ("index_added", "if item[0] in ('b', high):"),
        ("bound_added", "for item in items[low:-1]:"),
        ("term_added", "count = min(total, high - low + 1)"),
        ("clause_added", "if item in ('b', high) or low < high:"),
        ("argument_added", "for index in range(low, high + 1, -1):"),
        ("value_replaced", "total, count = (low, 1)"),
        ("condition_replaced", "if total is None:"),
        ("target", "count += item * 2"),
        ("update_added", "total += 1"),
        ("guard_added", "if not items:"),
        ("guard_added", "if not low < high:"),
    ],
)
def test_each_kind_makes_the_change_it_is_named_for(space: EditSpace, kind: str, line: str) -> None:
    if kind == "loop_exit":
        programs = [space.program([edit]) for edit in space.edits if edit.kind == kind]
        assert [program.count("continue") for program in programs] == [0, 2]
    else:
        assert line in changes(space, kind)


def test_statements_and_returns_change_places(space: EditSpace) -> None:
    programs = {
        edit.kind: space.program([edit])
        for edit in space.edits
        if edit.kind in ("statement_order", "return_value")
    }
    assert "return max(total, 1.5)\n    for" in programs["return_value"]
    assert "total = total - count\n        count = min" in programs["statement_order"]


@pytest.mark.process
def test_only_the_named_function_is_edited(space: EditSpace) -> None:
    head = space.source[: space.source.index("def solve")]
    assert all(space.program([edit]).startswith(head) for edit in space.edits)


@pytest.mark.process
def test_every_kind_is_declared_and_made() -> None:
    rare = (
        "def rare(a, b):\n    c = []\n    return [d.x for d in a if 0 < d.y < 3 if b and c and d]"
    )
    spaces = [*corpus_spaces(), EditSpace(rare, "rare")]
    assert {edit.kind for space in spaces for edit in space.edits} == set(EDIT_KINDS)


def corpus_spaces() -> Iterator[EditSpace]:
    for subject in load_subjects()[::12]:
        yield EditSpace(subject.source, subject.function, defined=subject.defined)


@pytest.mark.process
def test_every_edit_of_the_corpus_compiles_and_is_undone() -> None:
    for space in corpus_spaces():
        with warnings.catch_warnings(category=SyntaxWarning, action="ignore"):
            for edit in space.edits[::20]:
                compile(space.program([edit]), "edited", "exec")
        assert space.program([]) == space.source


INVERTIBLE = (
    *("comparison", "arithmetic", "operand_order", "boolean", "negation", "sign", "offset"),
    *("variable", "method", "function", "argument_order", "element_order", "slice"),
    *("loop_exit", "statement_order", "return_value"),
)


@pytest.mark.process
def test_edits_have_inverses_in_the_space_of_what_they_make() -> None:
    """Except removals of ``+ 1`` in places where it is not inserted."""
    for subject in load_subjects()[::12]:
        defined = subject.defined
        space = EditSpace(subject.source, subject.function, defined=defined)
        for edit in [each for each in space.edits if each.kind in INVERTIBLE][::80]:
            elsewhere = edit.kind == "offset" and edit.path[0] not in ("slice", "lower", "upper")
            if not elsewhere:
                made = EditSpace(space.program([edit]), space.function, defined=defined)
                backs = [back for back in made.edits if back.kind == edit.kind]
                nearest = sorted(backs, key=lambda back: abs(back.node - edit.node))
                assert any(made.program([back]) == space.source for back in nearest), edit


@pytest.mark.process
def test_sets_of_edits_apply_in_any_order() -> None:
    rng = Random(0)
    for space in corpus_spaces():
        by_node = {edit.node: edit for edit in rng.sample(space.edits, len(space.edits))}
        edits: list[Edit] = rng.sample(list(by_node.values()), min(4, len(by_node)))
        program = space.program(edits)
        ast.parse(program)
        assert space.program(edits[::-1]) == program
        assert space.program([]) == space.source


@given(data=st.data())
def test_any_three_edits_apply_and_are_undone(space: EditSpace, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(st.sampled_from(space.edits), max_size=3))
    edits = {edit.node: edit for edit in drawn}.values()
    before = ast.dump(ast.parse(space.program([])))
    program = space.program(edits)
    assert ast.unparse(ast.parse(program)) == program, "a program is in normal form"
    assert space.program(list(edits)[::-1]) == program
    assert ast.dump(ast.parse(space.program([]))) == before
    assert space.program([]) == space.source


def test_statements_that_edits_insert_remove_and_move_at_once() -> None:
    source = (
        "def solve(a):\n    b = 0\n    for c in a:\n        b += c\n        a = b\n    return b"
    )
    space = EditSpace(source, "solve")
    moved = next(e for e in space.edits if (e.old, e.new) == ("a = b", "after its block"))
    removed = next(e for e in space.edits if e.kind == "statement_removed" and e.old == "b += c")
    added = next(e for e in space.edits if e.kind == "guard_added" and e.new.endswith("return 0"))
    assert space.program([moved, removed, added]) == (
        "def solve(a):\n    if not a:\n        return 0\n    b = 0\n"
        "    for c in a:\n        pass\n    a = b\n    return b"
    )
    assert space.program([]) == source


def test_an_edit_within_what_another_moves_is_kept() -> None:
    space = EditSpace("def solve(a, b):\n    return a + 1 - b", "solve")
    outer = next(e for e in space.edits if e.kind == "operand_order" and e.old == "Sub")
    inner = next(e for e in space.edits if e.kind == "offset" and e.new == "nothing")
    assert space.program([outer, inner]).endswith("return b - a")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("low = middle + 1", "low = middle"),
        ("low = len(items) - 1", "low = len(items)"),
        ("low = items[middle - 1]", "low = items[middle]"),
        ("return middle + 1", "return middle"),
    ],
)
def test_one_off_is_within_reach(right: str, wrong: str) -> None:
    source = "def solve(items, middle, low):\n    {}\n    return low"
    space = EditSpace(source.format(wrong), "solve")
    wanted = ast.unparse(ast.parse(source.format(right)))
    assert wanted in {space.program({edit}) for edit in space.edits}


def test_two_edits_that_replace_one_node_are_refused(space: EditSpace) -> None:
    last = [edit for edit in space.edits if not edit.inserts]
    same = [edit for edit in last if edit.node == last[-1].node][:2]
    with pytest.raises(ValueError, match="same node"):
        space.program(same)


@pytest.mark.parametrize(("source", "message"), [("def solve(:", "Python"), ("x = 1", "'solve'")])
def test_what_cannot_be_edited_is_refused(source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EditSpace(source, "solve")


def test_a_method_is_edited_and_nothing_else() -> None:
    source = """
class Other:
    def total(self):
        return 1

class Cart:
    @property
    def total(self):
        return self.low + 1

    @total.setter
    def total(self, value):
        self.low = value + 5
"""
    space = EditSpace(source, "Cart.total")
    programs = [space.program([edit]) for edit in space.edits]
    assert programs
    assert all("value + 5" in program and "return 1\n" in program for program in programs)
    for missing in ("Cart.sum", "Shop.total", "total"):
        with pytest.raises(ValueError, match="defines no function"):
            EditSpace(source, missing)


def test_any_two_edits_of_different_nodes_give_a_program() -> None:
    space = EditSpace(
        "def solve(a, b):\n    a, b = (b, a)\n    return a\n",
        "solve",
    )
    for pair in combinations(space.edits, 2):
        if pair[0].node != pair[1].node:
            compile(space.program(pair), "program", "exec", dont_inherit=True)
