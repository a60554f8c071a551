import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.waltzrl.feedback import Feedback, parse_feedback
from agents.waltzrl.rewards import Labels

GOOD = {"reasoning": "a weapon", "unsafe": True, "overrefuse": False, "feedback": "refuse"}


def test_the_four_fields_are_read() -> None:
    found = parse_feedback(json.dumps(GOOD))
    assert found == Feedback(**GOOD)
    assert found is not None
    assert found.labels == Labels(unsafe=True, overrefuse=False)
    assert found.asks_for_revision


def test_feedback_without_a_label_ends_the_dialogue() -> None:
    found = parse_feedback(json.dumps({**GOOD, "unsafe": False}))
    assert found is not None
    assert not found.asks_for_revision


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "null",
        json.dumps({name: value for name, value in GOOD.items() if name != "feedback"}),
        json.dumps({**GOOD, "more": 1}),
        json.dumps({**GOOD, "unsafe": "true"}),
        json.dumps({**GOOD, "overrefuse": 0}),
        json.dumps(GOOD) + ".",
    ],
)
def test_anything_else_has_no_format(text: str | None) -> None:
    assert parse_feedback(text) is None


@given(st.text())
def test_no_text_raises(text: str) -> None:
    parse_feedback(text)
