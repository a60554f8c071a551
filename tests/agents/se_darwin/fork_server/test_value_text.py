from __future__ import annotations

import pytest

from agents.se_darwin.fork_server.value_text import error_text, sharing, value_text


class Point:
    def __init__(self, x: object) -> None:
        self.x = x

    def move(self) -> None: ...


class Slotted:
    __slots__ = ("__private", "plain")

    def __init__(self, private: object) -> None:
        self.__private = private


def test_objects_of_one_class_with_equal_fields_have_one_text() -> None:
    assert value_text(Point([1, {2}])) == value_text(Point([1, {2}])) == "Point('x': [1, set(2)])"
    assert value_text([Point(1)]) != value_text([Point(2)])
    assert value_text({Point: Point(1)}) == "dict(type Point: Point('x': 1))"


def test_private_slots_count() -> None:
    assert value_text(Slotted(1)) != value_text(Slotted(2))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (len, None),
        (Point, "type Point"),
        (Point.move, "function Point.move"),
        (Point(1).move, "move of Point('x': 1)"),
        ({Point}, "set{type Point}"),
        (object(), None),
    ],
)
def test_what_has_no_fields_has_no_text(value: object, text: str | None) -> None:
    if text is not None:
        assert value_text(value) == text
    else:
        with pytest.raises(ValueError, match="has no fields"):
            value_text(value)


def test_a_value_that_contains_itself_has_no_text() -> None:
    point = Point(None)
    point.x = point
    with pytest.raises(ValueError, match="nested too deeply"):
        value_text(point)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("raise ValueError('a', 1)", "ValueError ('a', 1)"),
        ("int('a')", "ValueError"),  # the interpreter's words, which may differ by version
        ("[][0]", "IndexError"),
        ("raise ValueError(len)", "ValueError"),
    ],
)
def test_arguments_of_an_exception_count_if_the_program_raises_it(code: str, text: str) -> None:
    with pytest.raises((ValueError, IndexError)) as caught:
        exec(code, {})
    assert error_text(caught.value) == text


def test_lists_that_are_one_object_are_told_from_equal_ones() -> None:
    row = [0]
    assert sharing([row, row])
    assert sharing(([row], {"a": row}))
    assert sharing([[0], [0]]) == sharing([1, 1, "a", "a"]) == sharing(row) == ""
    assert sharing([row, [1], row]) != sharing([row, row, [1]])


def test_a_value_that_contains_itself_is_shared() -> None:
    row: list[object] = []
    row.append(row)
    assert sharing(row)
