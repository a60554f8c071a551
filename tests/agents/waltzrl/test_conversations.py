from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.waltzrl.conversations import decode_conversation
from agents.waltzrl.rewards import Labels

STOPPED = {
    "conversation_id": "one",
    "prompt": "How do I kill a process?",
    "response": "I cannot help with that.",
    "unsafe": False,
    "overrefuse": True,
}
REVISED = {
    **STOPPED,
    "feedback": "It is a program: help.",
    "revised": "Use kill and its number.",
    "revised_unsafe": False,
    "revised_overrefuse": False,
}


def encoded(record: dict[str, object]) -> bytes:
    return json.dumps(record).encode()


def test_a_line_has_the_labels_of_both_replies() -> None:
    stopped = decode_conversation(encoded({**STOPPED, "other": 1}))
    assert (stopped.before, stopped.after) == (Labels(False, True), None)
    revised = decode_conversation(encoded(REVISED))
    assert revised.after == Labels(False, False)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "Invalid JSON"),
        (b"[]", "an object"),
        (b"[" * 100_000, "Invalid JSON"),
        (encoded({"prompt": "x"}), "conversation_id: Field required"),
        (encoded({**STOPPED, "unsafe": "no"}), "unsafe: "),
        (encoded({**STOPPED, "conversation_id": ""}), "conversation_id: "),
        (encoded({**STOPPED, "prompt": None}), "prompt: "),
        (encoded({**STOPPED, "revised": "Yes."}), "needs all"),
        (encoded({**REVISED, "feedback": ""}), "needs all"),
        (encoded({**REVISED, "revised_unsafe": None}), "leave all"),
    ],
)
def test_a_line_that_is_no_conversation_has_a_reason(line: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        decode_conversation(line)
    assert "\n" not in str(raised.value)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_conversation_or_a_value_error(line: bytes) -> None:
    with suppress(ValueError):
        decode_conversation(line)
