"""JSON that any parser reads, in text and in files."""

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from infrastructure.files import (
    JsonFileError,
    json_text,
    read_json,
    read_model,
    write_json,
    write_model,
)

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


class Facts(BaseModel):
    size: int


def test_a_model_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    write_model(path, Facts(size=3), indent=1)
    assert read_model(path, Facts, limit=64) == Facts(size=3)


@pytest.mark.parametrize(
    ("content", "problem"),
    [('{"size": "three"}', "size: "), ("[1]", "object"), ('{"size"', "JSON"), ("", "JSON")],
)
def test_a_wrong_model_is_refused_with_file_and_field(
    tmp_path: Path, content: str, problem: str
) -> None:
    path = tmp_path / "facts.json"
    path.write_text(content)
    with pytest.raises(JsonFileError, match=rf"facts\.json: .*{problem}"):
        read_model(path, Facts, limit=64)


@pytest.mark.parametrize("content", ["{", "[" * 50_000, '{"a": NaN}', "\xff"])
def test_what_is_not_json_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(JsonFileError, match=r"facts\.json: is not JSON"):
        read_json(path, limit=1 << 20)


def test_constants_that_json_lacks_are_read_where_allowed(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_text("[Infinity, -Infinity]")
    assert read_json(path, limit=64, allow_nan=True) == [math.inf, -math.inf]


def test_neither_a_huge_file_nor_a_pipe_is_read(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    write_model(path, Facts(size=3))
    with pytest.raises(OSError, match=r"4 bytes.*facts\.json"):
        read_model(path, Facts, limit=4)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="regular file"):
        read_json(path, limit=64)
