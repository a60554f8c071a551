from __future__ import annotations

import pytest

from agents.se_darwin.fork_server.check import PASSED
from agents.se_darwin.sandbox import Execution, Output, TestCase
from agents.se_darwin.tasks.evaluation import Evaluation, line_suspiciousness


def output(text: str, kind: str = "value", lines: tuple[int, ...] = ()) -> Output:
    return Output(kind=kind, text=text, arguments="()", lines=frozenset(lines))  # type: ignore[arg-type]


def evaluate(tests: list[TestCase], outputs: list[Output | None]) -> Evaluation:
    execution = Execution(outputs=tuple(outputs), end="exit")
    return Evaluation.of(frozenset(), "", execution, tests)


@pytest.mark.parametrize(
    ("wanted", "got", "symptom"),
    [
        (3, output("4"), "number one greater"),
        (3, output("2"), "number one less"),
        (3, output("9"), "number greater"),
        (3, output("-9"), "number less"),
        ("abc", output("'ab'"), "text shorter start"),
        ("abc", output("'bc'"), "text shorter"),
        ("abc", output("'abd'"), "text differs"),
        ([1], output("[1, 2]"), "list longer start"),
        ([1], output("(1,)"), "tuple for list"),
        (None, output("True"), "bool for None"),
        (3, output("IndexError", "raise"), "IndexError for value"),
        (3, output("Failed", "raise"), "value for exception"),
        (3, output("an object", "strange"), "strange"),
        (3, None, "unfinished"),
    ],
)
def test_symptoms_describe_the_failure(wanted: object, got: Output | None, symptom: str) -> None:
    assert evaluate([TestCase.returning((), wanted)], [got]).symptoms == (symptom,)


def test_a_missing_exception_is_a_symptom() -> None:
    case = TestCase(arguments=(), kind="raise", expected="ValueError")
    assert evaluate([case], [output("3")]).symptoms == ("value for exception",)


def test_what_failed_tests_expected_and_got_is_kept() -> None:
    tests = [TestCase.returning((), number) for number in range(3)]
    tests.append(TestCase(arguments=(), expected=PASSED))
    checked = Output(kind="value", text="[]", arguments="0")
    found = evaluate(tests, [output("0"), output("7"), output("KeyError", "raise"), checked])
    assert (found.wanted, found.got) == (("1", "0"), ("7", "[]"))


def test_score_and_fixed() -> None:
    tests = [TestCase.returning((), number) for number in range(4)]
    half = evaluate(tests, [output("0"), output("1"), output("7"), None])
    assert (half.score, half.fixed) == (0.5, False)
    assert evaluate(tests, [output(str(number)) for number in range(4)]).fixed


def test_suspiciousness_is_ochiai() -> None:
    tests = [TestCase.returning((), 0)] * 4
    lines = [(1, 2), (1, 2), (1, 3), (1, 2, 3)]
    texts = ["0", "0", "9", "9"]
    table = line_suspiciousness(
        evaluate(tests, [output(t, lines=n) for t, n in zip(texts, lines, strict=True)])
    )
    assert table[3] == (1.0, 1.0, 0.0)
    assert table[1] == pytest.approx((2 / (2 * 4) ** 0.5, 1.0, 1.0))
    assert table[2] == pytest.approx((1 / (2 * 3) ** 0.5, 0.5, 1.0))
