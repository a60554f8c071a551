from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from agents.se_darwin.sandbox import Execution, TestCase


def parse(text: str) -> Execution:
    return Execution.parse(text, 2, end="exit", cpu_seconds=0.0)


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    assert len(parse(text).outputs) == 2


@given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x, max_size=6)))
def test_no_json_breaks_the_parser(value: object) -> None:
    assert len(parse(json.dumps(value)).outputs) == 2


def test_the_first_result_of_a_test_stays() -> None:
    lines = [[1, "value", "first", "()", []], [1, "value", "second", "()", []]]
    output = parse("\n".join(map(json.dumps, lines))).outputs[1]
    assert output is not None
    assert output.text == "first"


def test_nothing_passes_without_an_output() -> None:
    assert not TestCase.returning((), None).passes(None)
