from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.se_darwin.sandbox import Execution, Limits, Output, TestCase
from agents.se_darwin.sandbox.execution import End


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


@pytest.mark.parametrize(
    ("numbers", "end", "expected"),
    [([], "exit", 0), ([0], "killed", 1), ([0], "timeout", None), ([0, 1], "exit", None)],
)
def test_the_test_is_known_in_which_the_process_ended(
    numbers: list[int], end: End, expected: int | None
) -> None:
    text = "\n".join(json.dumps([each, "value", "1", "()", []]) for each in numbers)
    assert Execution.parse(text, 2, end=end, cpu_seconds=0.0).lost_at == expected


def test_nothing_passes_without_an_output() -> None:
    assert not TestCase.returning((), None).passes(None)


@pytest.mark.parametrize(
    "line",
    [
        '[2, "value", "1", "()", []]',  # there is no third test
        '[0, "odd", "1", "()", []]',
        '[0, "value", "1", "()", 5]',
        '[0, "value", "1", "()", ["x"]]',
        "[" * 100_000,
        "0",
        "{",
    ],
)
def test_an_invalid_line_does_not_affect_other_results(line: str) -> None:
    first, second = parse(f'{line}\n[1, "value", "1", "()", [3]]').outputs
    assert first is None
    assert second == Output(kind="value", text="1", arguments="()", lines=frozenset({3}))


@pytest.mark.parametrize(
    ("output", "passes"),
    [
        (Output(kind="value", text="1", arguments="([],)"), True),
        (Output(kind="raise", text="1", arguments="([],)"), False),
        (Output(kind="value", text="2", arguments="([],)"), False),
        (Output(kind="value", text="1", arguments="([1],)"), False),
    ],
)
def test_kind_text_and_arguments_must_be_right(output: Output, passes: bool) -> None:
    case = TestCase(arguments=([],), expected="1", expected_arguments="([],)")
    assert case.passes(output) is passes


@pytest.mark.parametrize("name", ["cpu_seconds", "wall_seconds", "memory_bytes"])
def test_limits_are_above_zero(name: str) -> None:
    with pytest.raises(ValueError, match="above zero"):
        Limits(**{name: 0})


def test_times_scales_both_times_but_not_memory() -> None:
    given = Limits(cpu_seconds=0.5, wall_seconds=2.0, memory_bytes=9)
    assert given.times(4) == Limits(cpu_seconds=2.0, wall_seconds=8.0, memory_bytes=9)
