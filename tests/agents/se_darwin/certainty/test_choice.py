from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log
from typing import Any

import pytest

from agents.se_darwin.certainty.choice import (
    entropy,
    informative,
    pattern,
    weigh,
    weigh_evidence,
    without_result,
)
from agents.se_darwin.certainty.inputs import ProgramInput
from agents.se_darwin.edits import EditSpace
from agents.se_darwin.fork_server.wire import Call

Make = Callable[..., Any]
NO_CALL: Call = {"values": {"roots": [], "nodes": []}, "names": []}
INPUTS = [ProgramInput(call=NO_CALL, origin=each % 2, changes=each // 2) for each in range(6)]


@pytest.fixture
def choose(repair: Make, outputs: Make) -> Make:
    """Weigh repairs with given numbers of edits, results and chances."""

    def choose(given: tuple[str, ...], *repairs: tuple[int, tuple[str, ...], float]) -> Any:
        return weigh(
            [repair(edits) for edits, _, _ in repairs],
            [outputs(*texts) for _, texts, _ in repairs],
            outputs(*given),
            inputs=INPUTS,
            is_passing=[True, False],
            evidence=[weigh_evidence(log(chance), 0) for _, _, chance in repairs],
        )

    return choose


def test_a_repair_that_leaves_alone_what_works_is_chosen(choose: Make) -> None:
    given = ("1", "2", "3", "4", "5", "6")
    changes_passing = (1, ("1", "0", "0", "4", "0", "6"), 0.1)
    changes_failing = (1, ("1", "0", "3", "0", "5", "0"), 0.1)
    first, second = choose(given, changes_passing, changes_failing)
    assert [each.text for each in first.behaviour] == ["1", "0", "3", "0", "5", "0"]
    assert first.belief > 0.7
    assert first.belief + second.belief == pytest.approx(1.0)


def test_an_ordering_that_becomes_an_equality_is_less_credible(repair: Make, outputs: Make) -> None:
    space = EditSpace("def solve(x, y):\n    return x >= y", "solve")
    found = {edit.new: edit for edit in space.edits if edit.kind == "comparison"}
    repairs = [replace(repair(), edits=frozenset([found[name]])) for name in ("Eq", "Gt")]
    same = outputs("1", "2", "3", "4", "5", "6")
    first, _ = weigh(
        repairs,
        [same, same],
        same,
        inputs=INPUTS,
        is_passing=[True, False],
        evidence=[0.0, 0.0],
    )
    assert first.repair is repairs[1]


def test_inputs_unlike_the_calls_of_the_tests_do_not_count(repair: Make, outputs: Make) -> None:
    first, second = weigh(
        [repair(), repair()],
        [outputs("1", "2", "3", "4", "0", "!KeyError"), outputs("1", "2", "3", "4", "5", "6")],
        outputs("1", "2", "3", "4", "5", "6"),
        inputs=[*INPUTS[:4], *(replace(each, is_usual=False) for each in INPUTS[4:])],
        is_passing=[True, False],
        evidence=[0.0, 0.0],
    )
    assert first.belief == second.belief == 0.5


def test_a_repair_that_catches_every_exception_is_less_credible(
    repair: Make, outputs: Make
) -> None:
    code = "def solve(x):\n    try:\n        return f(x)\n    except {}:\n        return 0\n"
    caught = ["Exception", "(ValueError, KeyError)", "BaseException", "KeyError"]
    repairs = [replace(repair(), source=code.format(each)) for each in caught]
    weighed = weigh(
        repairs,
        [outputs("1")] * 4,
        outputs("2"),
        inputs=INPUTS[:1],
        is_passing=[True],
        evidence=[0.0] * 4,
    )
    assert [each.repair for each in weighed] == [repairs[1], repairs[3], repairs[0], repairs[2]]
    assert weighed[0].belief == weighed[1].belief > 2 * weighed[2].belief


def test_a_repair_that_leaves_dead_code_is_less_credible(repair: Make, outputs: Make) -> None:
    code = "def solve(x):\n    return x\n"
    repairs = [replace(repair(), source=code + rest) for rest in ("    return 2 * x\n", "")]
    weighed = weigh(
        repairs,
        [outputs("1")] * 2,
        outputs("2"),
        inputs=INPUTS[:1],
        is_passing=[True],
        evidence=[0.0] * 2,
    )
    assert [each.repair for each in weighed] == repairs[::-1]
    assert weighed[0].belief > 0.7


@pytest.mark.parametrize(
    "worse",
    [
        (2, ("1", "0", "3", "4", "5", "6"), 0.1),
        (1, ("1", "0", "3", "4", "5", "6"), 0.01),
        (1, ("1", "0", "3", "!KeyError", "5", None), 0.1),
        (1, ("1", "0", "3", "4", "5", "None"), 0.1),
    ],
    ids=["more edits", "less likely", "fails more often", "returns nothing"],
)
def test_of_two_repairs_the_simpler_likelier_or_safer_one_is_chosen(
    choose: Make, worse: tuple[int, tuple[str, ...], float]
) -> None:
    better = (1, ("1", "0", "3", "4", "5", "7"), 0.1)
    chosen, other = choose(("1", "2", "3", "4", "5", "6"), worse, better)
    assert chosen.behaviour[5].text == "7"
    assert other.belief < 0.5


def test_nothing_is_expected_only_where_a_test_returns_it(outputs: Make) -> None:
    assert without_result(outputs("1", "2", "None", "!KeyError", None, "None"), INPUTS) == [2, 5]
    assert without_result(outputs("1", "None", "None", "3", "4", "5"), INPUTS) == []
    assert without_result(outputs("!KeyError", None, "None", "3", "4", "5"), INPUTS) == []


def test_programs_that_do_the_same_have_one_pattern(outputs: Make) -> None:
    assert pattern(outputs("1", None)) == pattern(outputs("1", None))
    assert pattern(outputs("1", None)) != pattern(outputs("1", "2"))


def test_inputs_on_which_every_program_fails_tell_nothing(outputs: Make) -> None:
    behaviours = [outputs("1", "!KeyError", None), outputs("!KeyError", "!TypeError", "1")]
    assert informative(behaviours, outputs("!KeyError", "!KeyError", None)) == [0, 2]


def test_inputs_on_which_a_program_was_not_run_tell_nothing(outputs: Make) -> None:
    behaviours = [outputs("!KeyError", "1", "!KeyError"), outputs(None)]
    assert informative(behaviours, outputs("1", "1", "!KeyError")) == [0]


def test_inputs_with_results_that_cannot_be_compared_tell_nothing(outputs: Make) -> None:
    behaviours = [outputs("?a function", "?", "1"), outputs("?a function", "1", "1")]
    assert informative(behaviours, outputs("None", "?", "?")) == [1, 2]
    assert informative(behaviours[:1], outputs("None", "?", "?")) == [2]


def test_entropy_is_greatest_between_equal_beliefs() -> None:
    assert entropy([1.0]) == 0.0
    assert entropy([0.5, 0.5]) == pytest.approx(log(2))
    assert entropy([0.9, 0.1, 0.0]) < entropy([0.6, 0.4])
