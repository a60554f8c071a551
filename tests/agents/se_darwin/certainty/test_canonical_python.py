from __future__ import annotations

import datetime as dt
from collections import Counter, namedtuple

import pytest

from agents.se_darwin.certainty.canonical_python import as_python
from agents.se_darwin.fork_server.canonical import canonical


class Stack(list[int]):
    """A list of the program's own."""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"Counter{": [1.5, "set(1)", "datetime.date"]}, None),
        ([dt.date(2024, 3, 29), dt.UTC], "[date(2024, 3, 29), timezone.utc]"),
        ({"b": {2, 1}, "a": frozenset()}, "{'a': set(), 'b': {1, 2}}"),
        ([Counter({"a": 1, "b": Counter()})], "[Counter({'a': 1, 'b': Counter({})})]"),
        (iter([1, {2}]), "iter([1, {2}])"),
        ((Stack([1, 2]), Stack([3])), "(Stack([1, 2]), Stack([3]))"),
        (namedtuple("Point", "x y")(1, (2,)), "Point(1, (2,))"),
        ([float("inf"), float("nan"), 2 + 1j], "[float('inf'), float('nan'), 2 + 1j]"),
    ],
)
def test_canonical_text_becomes_python(value: object, text: str | None) -> None:
    written = canonical(value)
    assert as_python(written) == (written if text is None else text)


def test_text_that_the_parser_cannot_read_stays() -> None:
    deep = "[" * 5000
    assert as_python(deep) == deep
    assert as_python("'''") == "'''"
