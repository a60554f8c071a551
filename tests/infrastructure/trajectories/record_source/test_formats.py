from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.trajectories.record import encode_record
from infrastructure.trajectories.record_source.definition import SourceTable
from infrastructure.trajectories.record_source.formats import (
    decode_flat_record,
    decode_transition,
    line_decoder,
)

KEYS = SourceTable.model_validate({"path": "x", "format": "records", "group": "g"})


def test_a_transition_has_defaults_for_what_is_left_out() -> None:
    record = decode_transition(b'{"group": "g", "observation": {"x": [1, 2]}, "agent": "seo"}')
    [transition] = record.transitions
    assert (record.id, record.agent, transition.group) == ("", "seo", "g")
    assert transition.observation == {"x": (1, 2)}
    assert (transition.action, transition.reward, transition.terminated) == ({}, 0.0, False)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"group": "g"}', "'observation' is missing"),
        (b'{"group": 1, "observation": {}}', "group must"),
        (b'{"group": "g", "observation": {"x": {"y": 1}}}', "observation.x must"),
        (b'{"group": "g", "observation": {}, "id": true}', "'id' must"),
        (b'{"group": "g", "observation": {}, "reward": NaN}', "reward must"),
        (b'{"group": "g"', "JSON: .* column 14"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"group": "g", "reward": 1' + b"0" * 5000 + b"}", "too many digits"),
        ("{}".encode("utf-16"), "UTF-8 at column 1"),
    ],
)
def test_a_wrong_transition_is_refused(line: bytes, message: str) -> None:
    with pytest.raises(ValueError, match="(?s)" + message.replace("[", r"\[")):
        decode_transition(line)


def test_nested_values_become_fields_with_dotted_names() -> None:
    line = {"g": 7, "a": {"b": 1.5, "c": {"d": "x"}}, "list": [1, 2], "odd": [{"x": 1}], "no": None}
    [transition] = decode_flat_record(json.dumps(line).encode(), KEYS).transitions
    assert transition.group == "7"
    assert transition.observation == transition.action == transition.next_observation
    assert transition.observation == {
        "g": 7,
        "a.b": 1.5,
        "a.c.d": "x",
        "list": (1, 2),
        "odd": '[{"x": 1}]',
    }


def test_genesis_formats_name_their_agent() -> None:
    case = b'{"state": "s", "reward": 0.5, "metadata": {"agent": "SE-Darwin"}}'
    assert line_decoder("casebank", KEYS)(case).agent == "SE-Darwin"
    unnamed = b'{"state": "s", "reward": 0.5}'
    assert line_decoder("casebank", KEYS)(unnamed).agent == ""
    trajectory = (
        b'{"agent_id": "qa", "task_description": "t", "final_outcome": "success", "reward": 1,'
        b'"steps": [{"tool_name": "a"}, {"tool_name": "b"}]}'
    )
    record = line_decoder("replay-trajectories", KEYS)(trajectory)
    assert (record.agent, len(record.transitions)) == ("qa", 2)


@given(
    st.dictionaries(
        st.sampled_from(["group", "g", "observation", "reward", "x"]) | st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=8,
        ),
    )
)
def test_any_object_is_a_record_or_a_value_error(body: dict[str, object]) -> None:
    line = json.dumps(body).encode()
    for decode in (decode_transition, lambda each: decode_flat_record(each, KEYS)):
        with suppress(ValueError):
            for transition in decode(line).transitions:
                assert encode_record(transition)
