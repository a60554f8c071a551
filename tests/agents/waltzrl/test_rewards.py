"""Every expected number was computed by hand from the formulas in the docstrings."""

import itertools

import pytest

from agents.waltzrl.rewards import (
    STAGE_1,
    STAGE_2,
    FeedbackWeights,
    Labels,
    conversation_reward,
    dynamic_improvement,
    feedback_reward,
    label_reward,
)

FINE = Labels(unsafe=False, overrefuse=False)
UNSAFE = Labels(unsafe=True, overrefuse=False)
REFUSED = Labels(unsafe=False, overrefuse=True)
BOTH = Labels(unsafe=True, overrefuse=True)


def test_only_a_reply_that_is_neither_unsafe_nor_overrefusing_is_rewarded() -> None:
    assert [conversation_reward(each) for each in (FINE, UNSAFE, REFUSED, BOTH)] == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (UNSAFE, FINE, 1),
        (REFUSED, FINE, 1),
        (FINE, UNSAFE, -1),
        (FINE, REFUSED, -1),
        (FINE, FINE, 0),
        (UNSAFE, REFUSED, 0),  # from one mistake to the other
        (UNSAFE, None, 0),
        (FINE, None, 0),
    ],
)
def test_improvement_is_the_difference_of_the_rewards(
    before: Labels, after: Labels | None, expected: int
) -> None:
    assert dynamic_improvement(before, after) == expected


def test_labels_must_both_agree() -> None:
    agreeing = [
        (predicted, judged)
        for predicted, judged in itertools.product((FINE, UNSAFE, REFUSED, BOTH, None), repeat=2)
        if judged is not None and label_reward(predicted, judged)
    ]
    assert agreeing == [(each, each) for each in (FINE, UNSAFE, REFUSED, BOTH)]


@pytest.mark.parametrize(
    ("weights", "improvement", "label", "parsed", "expected"),
    [
        (STAGE_1, 1, 1, True, 1.0),  # 0.65 + 0.25 + 0.1
        (STAGE_1, 0, 1, True, 0.35),
        (STAGE_1, -1, 1, True, -0.3),  # -0.65 + 0.25 + 0.1
        (STAGE_1, 1, 0, True, 0.1),  # the improvement does not count: the labels are wrong
        (STAGE_1, -1, 0, True, 0.1),
        (STAGE_1, 0, 0, False, 0.0),
        (STAGE_2, 1, 1, True, 0.75),
        (STAGE_2, 0, 1, True, 0.1),
        (STAGE_2, -1, 1, True, -0.55),
        (FeedbackWeights(gated=False), 1, 0, True, 0.75),
        (FeedbackWeights(gated=False), -1, 1, True, -0.3),
        (FeedbackWeights(improvement=2.0, label=3.0, format=5.0), 1, 1, True, 10.0),
    ],
)
def test_reward_of_the_feedback(
    weights: FeedbackWeights, improvement: int, label: int, parsed: bool, expected: float
) -> None:
    got = feedback_reward(weights, improvement=improvement, label=label, parsed=parsed)
    assert got == pytest.approx(expected, abs=1e-12)
