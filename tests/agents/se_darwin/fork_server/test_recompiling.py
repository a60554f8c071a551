from __future__ import annotations

import ast
from types import CodeType
from typing import Any

import pytest

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.fork_server.recompiling import Recompiler

PROGRAM = ast.unparse(
    ast.parse(
        '''
"""A module."""
from __future__ import annotations

LIMIT = 7

def keep(function):
    return function

def area(width, height=1, *, unit: Length = "m"):
    """Return a size.

def not_this(): a line of this text
    """
    sizes = [width * each for each in range(height)]
    if width > LIMIT or not sizes:
        return 0
    def inner(x=width):
        return x + height
    return inner() + sum(sizes)

class Base:
    def level(self):
        return 1

class Shape(Base):
    sides = 4

    class Corner:
        def turn(self, by):
            return -by if by > 0 else by + 360

    @keep
    @staticmethod
    def area(width, height=2):
        return width * height

    def level(self):
        self.__seen = super().level() + 1
        return self.__seen

    @property
    def corners(self):
        for number in range(self.sides):
            yield number

def last(items):
    return items[-1]
'''
    )
)
FIELDS = (
    *("co_name", "co_qualname", "co_firstlineno", "co_flags", "co_code", "co_names", "co_varnames"),
    *("co_freevars", "co_cellvars", "co_argcount", "co_kwonlyargcount", "co_exceptiontable"),
)


def described(code: CodeType, *, lines: bool) -> list[object]:
    """What *code* does, and with *lines* on which lines."""
    return [
        *(getattr(code, name) for name in FIELDS if lines or name != "co_firstlineno"),
        *(
            described(each, lines=lines) if isinstance(each, CodeType) else repr(each)
            for each in code.co_consts
        ),
    ]


def keep(code: CodeType) -> CodeType:
    """The code of the function `keep`, which no edit changes."""
    consts = [each for each in code.co_consts if isinstance(each, CodeType)]
    return next(each for each in consts if each.co_name == "keep")


def run(code: CodeType) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "program"}
    exec(code, namespace)
    return namespace


@pytest.mark.parametrize(
    "function", ["area", "Shape.area", "Shape.level", "Shape.corners", "Shape.Corner.turn", "last"]
)
def test_what_is_compiled_in_part_is_what_is_compiled_as_a_whole(function: str) -> None:
    space, recompiler = EditSpace(PROGRAM, function), Recompiler()
    known = [keep(recompiler.compile(PROGRAM, "<candidate>"))]
    shared = 0
    for edit in space.edits:
        source = space.program([edit])
        code = recompiler.compile(source, "<candidate>")
        as_a_whole = compile(source, "<candidate>", "exec", dont_inherit=True)
        is_as_long = source.count("\n") == PROGRAM.count("\n")
        assert described(code, lines=is_as_long) == described(as_a_whole, lines=is_as_long), edit
        shared += any(keep(code) is each for each in known)
        known.append(keep(code))
    assert shared > 0.8 * len(space.edits)


def test_the_function_keeps_its_line_numbers() -> None:
    recompiler, changed = Recompiler(), PROGRAM.replace("return -by", "return by")
    for source in (PROGRAM, changed):
        turn = run(recompiler.compile(source, "<candidate>"))["Shape"].Corner.turn
    line = PROGRAM.split("\n").index("        def turn(self, by):") + 1
    assert turn.__code__.co_firstlineno == line
    assert turn(None, 3) == 3


@pytest.mark.parametrize(
    ("old", "new", "height"),
    [("height=2", "height=True", True), ("height=2", "height=2.0", 2.0), ("    @keep\n", "", 2)],
)
def test_what_runs_outside_of_the_function_counts(old: str, new: str, height: object) -> None:
    recompiler = Recompiler()
    recompiler.compile(PROGRAM, "<candidate>")
    recompiler.compile(PROGRAM.replace("items[-1]", "items[0]"), "<candidate>")
    shape = run(recompiler.compile(PROGRAM.replace(old, new), "<candidate>"))["Shape"]
    assert repr(shape.area.__defaults__) == repr((height,))


def test_other_programs_and_what_is_not_python() -> None:
    recompiler = Recompiler()
    recompiler.compile(PROGRAM, "<candidate>")
    with pytest.raises(SyntaxError) as caught:
        recompiler.compile(PROGRAM.replace("by > 0 else", "by > 0"), "<candidate>")
    assert caught.value.filename == "<candidate>"
    assert caught.value.text is not None
    assert run(recompiler.compile("x = 1", "<candidate>"))["x"] == 1
    assert run(recompiler.compile(PROGRAM.replace("LIMIT = 7", "LIMIT = 8"), "<x>"))["LIMIT"] == 8
    assert run(recompiler.compile(PROGRAM, "<candidate>"))["last"]([1, 2]) == 2


def test_a_text_that_has_other_line_ends() -> None:
    recompiler, source = Recompiler(), "def one():\r    return 1\r\ndef two():\n    return 2\n"
    recompiler.compile(source, "<candidate>")
    namespace = run(recompiler.compile(source.replace("return 2", "return 3"), "<candidate>"))
    assert (namespace["one"](), namespace["two"]()) == (1, 3)
