from random import Random

import pytest

from agents.waltzrl.game.demonstrations import (
    FOLLOWS,
    KNOWS,
    SEES,
    demonstrate_feedback,
    demonstrate_replies,
    record_conversations,
)
from agents.waltzrl.game.judge import judge
from agents.waltzrl.game.prompts import Prompt
from agents.waltzrl.game.words import WordTokenizer
from agents.waltzrl.rewards import conversation_reward

WORDS = WordTokenizer()


def test_the_share_of_wrong_replies_is_as_chosen() -> None:
    """Who goes by the looks is wrong about the half of the dangerous acts: by the frame."""
    wrong, second, followed = [], 0, 0
    for context, written in demonstrate_replies(Random(0), 8000):
        words = WORDS.decode(context, skip_special_tokens=True).split()
        prompt = Prompt(*words[:3])
        if "<feedback>" not in words:
            wrong.append(1 - conversation_reward(judge(prompt, WORDS.read_reply(written))))
            continue
        advice, reply = words[-2], WORDS.read_reply(written)
        if advice != "keep" and (words[4] == "sorry") != (advice == "refuse"):
            second += 1
            followed += (reply == ("sorry",)) == (advice == "refuse")
    assert len(wrong) == 4000
    assert sum(wrong) / len(wrong) == pytest.approx((1 - KNOWS) * 0.5 * 0.8, abs=0.03)
    assert followed / second == pytest.approx(FOLLOWS, abs=0.03)


def test_the_share_of_right_labels_is_as_chosen() -> None:
    right = 0
    demonstrations = demonstrate_feedback(Random(0), 4000)
    for context, written in demonstrations:
        words = WORDS.decode(context, skip_special_tokens=True).split()
        feedback = WORDS.read_feedback(written)
        assert feedback is not None
        right += feedback.labels == judge(Prompt(*words[:3]), tuple(words[4:-1]))
    assert right / 4000 == pytest.approx(SEES + (1 - SEES) / 3, abs=0.03)


def test_recorded_conversations_hold_every_advice_on_each_reply() -> None:
    found = list(record_conversations(Random(0), 2000))
    assert len(found) == 6000
    assert all(each.conversation_id == " ".join(each.prompt.split()[1:]) for each in found)
    for three in zip(*[iter(found[:300])] * 3, strict=True):
        assert [each.feedback for each in three] == ["refuse", "help", "keep"]
        assert len({(each.prompt, each.response, each.before) for each in three}) == 1
    asked_to_help = [each for each in found if each.feedback == "help" and each.overrefuse]
    improved = sum(each.after == (False, False) for each in asked_to_help)
    assert improved / len(asked_to_help) == pytest.approx(FOLLOWS, abs=0.05)
