"""The type of a field, and what is odd about its values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from infrastructure.agent_contract.transition import Box, Discrete, FieldType, FieldValue, Text
from infrastructure.trajectories.record_source.field_types import doubt_about, field_type


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2.5, math.nan], Box()),
        ([(1.0, 2.0), (3.0, 4.0)], Box(shape=(2,))),
        ([True, False], Discrete(values=("false", "true"))),
        (["a", "b"] * 5, Discrete(values=("a", "b"))),
        (["a", "b"], Text()),
        ([("a", "b"), ("c",)], Text()),
    ],
)
def test_values_have_a_type(values: Sequence[FieldValue], kind: FieldType) -> None:
    assert field_type("x", values) == (kind, "")


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("x", [1, 1], "it is the same"),
        ("x", [1, "a"], "its values are of"),
        ("x", [(1.0,), (1.0, 2.0)], "its length varies from 1 to 2"),
        ("x", [math.nan, math.inf], "no number"),
        ("seen_at", ["a", "b"], "it looks like a time"),
    ],
)
def test_values_without_a_type_are_told_why(
    name: str, values: Sequence[FieldValue], why: str
) -> None:
    kind, reason = field_type(name, values)
    assert kind is None
    assert reason.startswith(why)


@pytest.mark.parametrize(
    ("kind", "values", "doubt"),
    [
        (Box(), [1.0, math.nan, 1e39], "2 of 3 values"),
        (Text(), ["1.5", "-2"], "its values are numbers"),
        (Box(), [1.0, 2.0], ""),
        (Text(), ["1.5", "inf"], ""),
    ],
)
def test_values_that_do_not_suit_their_type_are_told(
    kind: FieldType, values: Sequence[FieldValue], doubt: str
) -> None:
    found = doubt_about(kind, values)
    assert found.startswith(doubt)
    assert bool(found) == bool(doubt)
