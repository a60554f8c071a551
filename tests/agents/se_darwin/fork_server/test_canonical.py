from __future__ import annotations

import ast
from collections import OrderedDict, namedtuple
from fractions import Fraction
from pprint import pformat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.se_darwin.fork_server.canonical import UncomparableError, canonical

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(PLAIN)
def test_the_text_of_a_plain_value_is_its_literal(value: object) -> None:
    assert ast.literal_eval(canonical(value)) == value


@given(PLAIN, PLAIN)
def test_different_values_have_different_texts(first: object, second: object) -> None:
    assert (canonical(first) == canonical(second)) == (pformat(first) == pformat(second))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (0.1 + 0.2, 0.3),
        (2.0, 2),
        ({0, 8}, {8, 0}),  # equal hashes: iteration order differs
        ({0.1 + 0.2: 1}, {0.3: 1}),
        ({"b": 2, "a": [1]}, {"a": [1], "b": 2}),
        ([{(2,): 0, 1: {}}], [{1: {}, (2,): 0}]),
        ([-0.0], [0.0]),
        (complex(-0.0, -0.0), 0j),
        (iter([1, 2]), iter((1, 2))),
        (float("nan"), float("nan")),
        (Fraction(1, 2), Fraction(2, 4)),
    ],
)
def test_what_counts_as_equal_has_one_text(first: object, second: object) -> None:
    assert canonical(first) == canonical(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (True, 1),
        ((1, 2), [1, 2]),
        (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
        ("1", 1),
        (b"a", "a"),
        (namedtuple("Pair", "a b")(1, 2), (1, 2)),
        (iter([1, 2]), (1, 2)),
    ],
)
def test_what_differs_in_type_differs(first: object, second: object) -> None:
    assert canonical(first) != canonical(second)


def test_an_objects_own_repr_and_equality_are_ignored() -> None:
    class Liar:
        def __repr__(self) -> str:
            return "42"

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    class LyingNumber(Liar, int):
        pass

    for liar in (Liar(), LyingNumber(7)):
        with pytest.raises(UncomparableError, match=f"a {type(liar).__name__}"):
            canonical([liar])


def test_a_value_that_holds_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(UncomparableError, match="nested"):
        canonical(endless)


def test_an_endless_iterator_is_cut() -> None:
    assert canonical(iter(int, 1)).count("0") == 2000
