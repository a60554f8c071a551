"""What may be sent."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import UserDict
from types import MappingProxyType

import numpy as np
import pytest
import torch
from genesis_client.values import encode, finite, plain, plain_mapping
from hypothesis import given
from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def without_nan(value: object) -> object:
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, list):
        return [without_nan(each) for each in value]
    if isinstance(value, dict):
        return {name: without_nan(each) for name, each in value.items()}
    return value


@given(JSON)
def test_what_json_has_is_sent_as_it_is(value: object) -> None:
    encoded = encode(plain(value, "field"))
    assert b"\n" not in encoded
    assert json.loads(encoded) == without_nan(value)


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.array([[1, 2]]), [[1, 2]]),
        (np.array([1.0, math.nan]), [1.0, None]),
        (torch.tensor([1.0, 2.0]), [1.0, 2.0]),
        ((1, [2]), [1, [2]]),
        ("a\udcff\ud83d\ude00é", "a\ufffd😀é"),
        ({"\ud800": ["\udfff"]}, {"\ufffd": ["\ufffd"]}),
        (MappingProxyType({"a": UserDict(b=1)}), {"a": {"b": 1}}),
    ],
)
def test_other_values_become_json(value: object, sent: object) -> None:
    assert plain(value, "field") == sent


@dataclasses.dataclass
class Point:
    x: float = 0.0


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (Point(), TypeError, "field must be text, a number, .*, got Point"),
        ({"a": [0, b""]}, TypeError, r"field\.a\[1\] must be .*, got bytes"),
        ({"a": {1: 2}}, TypeError, r"the keys of field\.a must be text, got 1"),
        ([math.inf], ValueError, r"field\[0\] must be finite, or NaN if missing, got inf"),
        (np.array([-np.inf]), ValueError, r"field\[0\] must be finite"),
        ({1}, TypeError, "got set"),
    ],
)
def test_anything_else_is_named(value: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        plain(value, "field")


def test_a_value_that_contains_itself_is_named() -> None:
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(ValueError, match="field contains itself"):
        plain(circle, "field")


def test_fields_have_names() -> None:
    assert plain_mapping(UserDict(a=1), "observation") == {"a": 1}
    with pytest.raises(TypeError, match="observation must be a mapping of names to values, got li"):
        plain_mapping([], "observation")


def test_a_mapping_becomes_fields_of_its_own() -> None:
    state = {"metrics": {"loss": 0.5, "by": {"step": [1, 2]}}, "topic": "login", "none": {}}
    assert plain_mapping(state, "observation") == {
        "metrics.loss": 0.5,
        "metrics.by.step": [1, 2],
        "topic": "login",
    }
    with pytest.raises(ValueError, match=r"observation has the field 'a\.b' twice"):
        plain_mapping({"a": {"b": 1}, "a.b": 2}, "observation")


def test_numbers_are_finite() -> None:
    assert finite(np.float32(0.5), "reward") == 0.5
    for wrong, error in ((math.nan, ValueError), ("1", TypeError), (True, TypeError)):
        with pytest.raises(error, match="reward must be"):
            finite(wrong, "reward")
