from itertools import islice
from random import Random

import pytest

from infrastructure.precision_lab.ppo.task import (
    CHARACTERS,
    LONGEST_ANSWER,
    Problem,
    problems,
    score,
    with_errors,
)


def test_the_answer_is_the_prompt_in_reverse() -> None:
    for problem in islice(problems(Random(0)), 50):
        assert problem.answer == problem.prompt[:-1][::-1]
        assert len(problem.answer) <= LONGEST_ANSWER
        assert set(problem.prompt + problem.answer) <= set(CHARACTERS)
        assert score(problem, problem.answer) == 1.0


@pytest.mark.parametrize(
    ("completion", "expected"),
    [("321", 1.0), ("", 0.0), ("123", 1 / 3), ("32", 2 / 3), ("321321", 0.5), ("3>1", 2 / 3)],
)
def test_the_score_is_the_share_of_right_characters(completion: str, expected: float) -> None:
    assert score(Problem("123>", "321"), completion) == pytest.approx(expected)


def test_a_demonstrator_errs_in_the_share_of_digits_that_is_asked_for() -> None:
    random = Random(1)
    given = list(islice(problems(random), 500))
    assert all(with_errors(each, random, 0.0) == each.answer for each in given)
    shown = [with_errors(each, random, 0.4) for each in given]
    assert [len(each) for each in shown] == [len(each.answer) for each in given]
    mean = sum(map(score, given, shown)) / len(given)
    assert mean == pytest.approx(0.6, abs=0.03)
