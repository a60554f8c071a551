from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from random import Random
from textwrap import indent
from typing import Any

import pytest

from agents.se_darwin.corpus import load_subjects
from agents.se_darwin.edits import Edit, EditSpace
from agents.se_darwin.edits.edit import Block, Slot, read, statement_in, write
from agents.se_darwin.edits.program_text import ProgramText, flattened

SOURCE = '''
def before():
    return 0

def sort_out(items, low, high=-1):
    """Sort them out.

Two lines of it.
    """
    'a text'
    kept, text = [], f"""{low}
    {high}"""
    for item in items:
        if item < low:
            continue
        elif item == low:
            kept.append(low)
        elif item > high:
            break
        else:
            def limited(value=high):
                return min(value, item)
            kept.append(limited())
    else:
        kept.append(text)
    try:
        kept.sort()
    except TypeError:
        return None
    finally:
        if not kept:
            low = high
        else:
            low += 1
    while low < high:
        low += 2
    return kept

def after():
    return 1
'''
METHODS = f"class Outer:\n    class Inner:\n{indent(SOURCE, 8 * ' ')}"


def written_as_a_whole(space: EditSpace, edits: Collection[Edit]) -> str:
    """Apply *edits*, and write the function and what is around it."""
    undone: list[tuple[Slot, object]] = []

    def put(slot: Slot, value: object) -> None:
        undone.append((slot, read(slot)))
        write(slot, value)

    for edit in sorted(edits, key=lambda edit: (-edit.node, edit.inserts, edit.kind, edit.new)):
        for slot, value in edit.assign():
            put(slot, value)
    for slot, block in flattened(space.definition):
        put(slot, block)
    tree = ast.parse(space.source)
    body = tree.body
    while isinstance(body[0], ast.ClassDef):
        body = body[0].body
    name = space.definition.name
    [index] = [i for i, each in enumerate(body) if getattr(each, "name", "") == name]
    body[index] = space.definition
    text = ast.unparse(tree)
    for slot, value in reversed(undone):
        write(slot, value)
    return text


def sets_of_edits(space: EditSpace, step: int) -> Iterator[list[Edit]]:
    """Single edits, and as many sets of two or three."""
    rng = Random(0)
    for edit in space.edits[::step]:
        yield [edit]
        some: list[Edit] = []
        for each in rng.sample(space.edits, min(rng.randint(2, 3), len(space.edits))):
            if each.goes_with(some):
                some.append(each)
        yield some


@pytest.mark.process
@pytest.mark.parametrize(
    ("source", "function"), [(SOURCE, "sort_out"), (METHODS, "Outer.Inner.sort_out")]
)
def test_changed_statements_are_written_as_in_the_whole(source: str, function: str) -> None:
    space = EditSpace(source, function)
    for edits in sets_of_edits(space, 9):
        assert space.program(edits) == written_as_a_whole(space, edits), edits
    assert space.program([]) == space.source


@pytest.mark.process
def test_so_are_those_of_the_corpus() -> None:
    for subject in load_subjects()[::50]:
        space = EditSpace(subject.source, subject.function, defined=subject.defined)
        for edits in sets_of_edits(space, 20):
            assert space.program(edits) == written_as_a_whole(space, edits), edits


def test_only_the_innermost_statement_is_written() -> None:
    tree = ast.parse(ast.unparse(ast.parse(SOURCE)))
    definition = tree.body[1]
    assert isinstance(definition, ast.FunctionDef)
    source = ast.unparse(tree)
    program = ProgramText(source, definition)
    loop = next(each for each in definition.body if isinstance(each, ast.While))
    addition = loop.body[0]
    assert isinstance(addition, ast.AugAssign)
    change = (addition, "value", None), ast.Name("high", ast.Load())
    write(*change)
    loop.test = ast.Constant(False)  # not told
    text = program.with_changes([change], [])
    assert text == source.replace("low += 2", "low += high")


INNER = "def inner():\n        return 1"
LOOP = "def f():\n    for x in y:\n        z = 1\n    return 1"
DOCUMENTED = "for x in y:\n    def inner():\n        '''one\ntwo'''"
BRANCH = "def f():\n    if x:\n        y = 1\n    else:\n        z = 1"


@pytest.mark.parametrize(
    ("source", "path", "now"),
    [
        ("def f():\n    x = 1\n    return x", ["body", 0], "'a text'"),
        ("def f():\n    'a text'\n    return 1", ["body", 0], "x = 2\n'a text'"),
        ("def f():\n    'a text'\n    return 1", ["body", 0], "'another'\nx = 2"),
        ("def f():\n    'a text'\n    return 1", ["body", 0], "ITSELF\nx = 2"),
        (LOOP, ["body", 0], DOCUMENTED),
        (f"def f():\n    {INNER}\n    return 1", ["body", 0, "body", 0], "'a text'"),
        ("def f():\n    x = 1\n    y = 2", ["body", 1], INNER),
        (BRANCH, ["body", 0, "orelse", 0], "if x:\n    y = 1"),
        (LOOP, ["body", 0, "body", 0], ""),
        (LOOP, ["body", 0], ""),
    ],
)
def test_what_depends_on_its_surroundings_is_written_with_them(
    source: str, path: list[Any], now: str
) -> None:
    tree = ast.parse(ast.unparse(ast.parse(source)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    program, owner = ProgramText(ast.unparse(tree), definition), definition
    *outer, role, index = path
    for inner_role, inner_index in zip(outer[::2], outer[1::2], strict=True):
        owner = getattr(owner, inner_role)[inner_index]
    before, after = statement_in((owner, role, index)), ast.parse(now).body
    statements = [before if ast.unparse(each) == "ITSELF" else each for each in after]
    change = (owner, role, index), Block(statements)
    write(*change)
    text = program.with_changes([change], [])
    for slot, block in flattened(definition):
        write(slot, block)
    assert text in (None, ast.unparse(tree))
