import pytest

from benchmarks.se_darwin.foreign.answering import answer
from benchmarks.se_darwin.foreign.attempt import Conditions, attempt, request_attempt
from benchmarks.se_darwin.foreign.bug import ForeignBug

RIGHT = """\
def half(number):
    if number < 0:
        raise ValueError("negative")
    if number > 100:
        return iter([number // 2])
    return number // 2
"""
TESTS = "from program import half\n\n\ndef test_half():\n    assert half({}) == {}\n"
BUG = ForeignBug(
    source="handwritten",
    name="half",
    code="def half(number):\n    return number // 3\n",
    function="half",
    test_code=TESTS.format(2, 1),
    hidden_test_code=TESTS.format(20, 10),
    right_code=RIGHT,
)


@pytest.mark.process
def test_the_right_program_answers_as_a_person_would() -> None:
    assert answer(BUG, "half(7)") == (
        "import pytest\nfrom program import half\n\n\n"
        "def test_answer_1():\n    assert half(7) == 3\n"
    )
    assert answer(BUG, "half(-1)", 2).endswith(
        "def test_answer_2():\n    with pytest.raises(ValueError):\n        half(-1)\n"
    )


@pytest.mark.process
@pytest.mark.parametrize("call", ["half('a')", "half(101)", "half(other)", "half(..."])
def test_what_nobody_would_write_gives_no_answer(call: str) -> None:
    assert answer(BUG, call) == ""


@pytest.mark.process
def test_a_question_is_answered_and_the_search_begins_again() -> None:
    conditions = Conditions(ranker="suspicion", max_seconds=30.0, max_evaluations=500, answers=1)
    record = attempt(request_attempt(BUG, conditions))

    assert record.repaired
    assert not record.error
    assert record.answered is not None
    assert record.answered.checks == record.checks + 1
    assert record.answered.answered is None
