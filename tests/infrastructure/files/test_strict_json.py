"""JSON that any parser reads, in text and in files."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.files import json_text, write_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@given(VALUES)
def test_any_value_becomes_json(value: object) -> None:
    json.loads(json_text(value, default=str), parse_constant=pytest.fail)


def test_numbers_that_json_lacks_are_text() -> None:
    assert json.loads(json_text({"a": [math.inf, math.nan], "b": 1.5})) == {
        "a": ["inf", "nan"],
        "b": 1.5,
    }


def test_an_object_without_a_form_in_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"a": (1, math.inf)})
    assert json.loads(path.read_text()) == {"a": [1, "inf"]}
    with pytest.raises(TypeError, match="set is not JSON"):
        write_json(path, {"a": {1}})
    assert json.loads(path.read_text()) == {"a": [1, "inf"]}
