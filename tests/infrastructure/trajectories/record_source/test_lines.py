from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from infrastructure.trajectories.record_source.formats import decode_transition
from infrastructure.trajectories.record_source.lines import split_objects, whole_end


@given(st.lists(st.dictionaries(st.text(), st.integers() | st.text(), min_size=1), min_size=1))
def test_glued_objects_are_split(objects: list[dict[str, object]]) -> None:
    line = "".join(json.dumps(each) for each in objects).encode()
    assert [json.loads(part) for part in split_objects(line)] == objects


@given(st.binary(max_size=60) | st.text('{}[]":,a1 ', max_size=20).map(str.encode))
def test_any_bytes_are_split_or_kept_whole(line: bytes) -> None:
    parts = split_objects(line)
    if parts not in ([], [line]):
        for part in parts:
            json.loads(part)
    if found := whole_end(line, decode_transition):
        assert line.endswith(found[1])
