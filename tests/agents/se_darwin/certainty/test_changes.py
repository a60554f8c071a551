from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.se_darwin.certainty.changes import change_items, change_value, is_plain, read, write


@given(st.integers() | st.floats(allow_nan=False) | st.booleans() | st.text() | st.binary())
def test_a_value_and_its_change_have_one_type_and_pass_through_a_message(value: Any) -> None:
    changed = change_value(value, [value], Random(0))
    assert type(changed) is type(value)
    assert is_plain(write(changed))
    assert read(write(changed)) == changed


@pytest.mark.parametrize("tag", ["list", "tuple", "dict"])
def test_the_elements_of_a_container_stay_whole(tag: str) -> None:
    for seed in range(40):
        items = [["a", 1], ["b", 2], ["c", 3]]
        changed = change_items(tag, items, Random(seed))
        assert all(len(each) == 2 and each[0] in "abc" for each in changed)


def test_places_of_a_tuple_keep_their_types() -> None:
    changed = [change_items("tuple", [["a"], [1], [2]], Random(seed)) for seed in range(60)]
    kept = [each for each in changed if [type(item[0]) for item in each] == [str, int, int]]
    assert len(kept) > 40
    assert [["a"], [2], [1]] in kept
