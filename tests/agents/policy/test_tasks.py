from __future__ import annotations

from itertools import islice
from random import Random

import pytest

from agents.policy.tasks import TASKS, Problem, is_held_out, reward, sorting


@pytest.mark.process
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_no_held_out_problem_is_trained_on_and_every_character_is_known(task) -> None:
    held_out = task.held_out_problems(256)
    assert len(set(held_out)) == 256
    assert held_out == task.held_out_problems(256)
    training = list(islice(task.training_problems(Random(3)), 2000))
    assert not {each.prompt for each in held_out} & {each.prompt for each in training}
    assert all(map(is_held_out, held_out))
    for problem in (*held_out, *training):
        assert set(problem.prompt + problem.answer) <= set(task.characters)
        assert 1 <= len(problem.answer) <= task.longest_answer


def test_answers_are_right() -> None:
    def some(name: str) -> list[Problem]:
        return list(islice(TASKS[name].training_problems(Random(5)), 300))

    for prompt, answer in some("arithmetic"):
        one, other = prompt.removesuffix("=").split("+")
        assert int(answer[::-1]) == int(one) + int(other)
    for prompt, answer in some("sorting"):
        assert list(answer) == sorted(prompt.removesuffix(">"))
    for prompt, answer in some("brackets"):
        text = prompt.removesuffix("=") + answer
        while (shorter := text.replace("()", "").replace("[]", "").replace("{}", "")) != text:
            text = shorter
        assert text == ""


def test_sorting_has_a_size() -> None:
    for digits in (2, 5, 12):
        task = sorting(digits)
        assert task.longest_answer == digits
        for prompt, answer in islice(task.training_problems(Random(5)), 100):
            assert len(answer) == digits
            assert list(answer) == sorted(prompt.removesuffix(">"))


def test_the_reward_is_for_the_whole_answer_that_ended() -> None:
    problem = Problem("31>", "13")
    assert reward(problem, "13") == 1.0
    assert [reward(problem, each) for each in ("1", "31", "133", "", None)] == [0.0] * 5
