"""Whatever is written is JSON."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genesis_fp16.system.json_text import json_text

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@given(VALUES)
def test_any_value_becomes_json(value: object) -> None:
    json.loads(json_text(value), parse_constant=pytest.fail)


def test_numbers_that_json_lacks_are_text() -> None:
    assert json.loads(json_text({"a": [math.inf, math.nan], "b": 1.5})) == {
        "a": ["inf", "nan"],
        "b": 1.5,
    }
