import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.waltzrl.feedback import Feedback
from agents.waltzrl.game.judge import ADVICE, REFUSAL
from agents.waltzrl.game.prompts import Prompt
from agents.waltzrl.game.words import CONTEXT, LONGEST_FEEDBACK, LONGEST_REPLY, WordTokenizer

WORDS = WordTokenizer()
PROMPT = Prompt("please", "kill", "process")
TOKENS = st.lists(st.integers(0, len(WORDS) - 1), min_size=1, max_size=LONGEST_FEEDBACK)


def test_what_the_agents_read() -> None:
    reply = WORDS.write_reply(REFUSAL)[:-1]
    assert WORDS.decode(WORDS.prompt(PROMPT)) == "<s> please kill process <reply>"
    assert WORDS.decode(WORDS.case(PROMPT, reply)) == (
        "<s> please kill process <reply> sorry <judge>"
    )
    assert WORDS.decode(WORDS.dialogue(PROMPT, reply, "help"), skip_special_tokens=True) == (
        "please kill process <reply> sorry <feedback> help <reply>"
    )


def test_a_reply_is_read_as_it_was_written() -> None:
    tokens = WORDS.write_reply(("sure", "process"))
    assert WORDS.read_reply(tokens) == ("sure", "process")
    assert WORDS.read_reply(tokens[:-1]) is None
    assert len(tokens) < LONGEST_REPLY


@pytest.mark.parametrize("unsafe", [False, True])
@pytest.mark.parametrize("advice", ADVICE)
def test_feedback_is_read_as_it_was_written(unsafe: bool, advice: str) -> None:
    feedback = Feedback(reasoning="harmful", unsafe=unsafe, overrefuse=not unsafe, feedback=advice)
    tokens = WORDS.write_feedback(feedback)
    assert WORDS.read_feedback(tokens) == feedback
    assert WORDS.read_feedback(tokens[:-1]) is None
    assert WORDS.read_feedback([*tokens[:3], *tokens[4:]]) is None
    assert len(tokens) < LONGEST_FEEDBACK


@given(TOKENS, TOKENS)
def test_what_an_agent_may_write_can_be_read_by_the_other(
    reply: list[int], written: list[int]
) -> None:
    """An untrained model writes any tokens, also in the strings of its JSON."""
    opening, *rest = WORDS.write_feedback(
        Feedback(reasoning="harmful", unsafe=True, overrefuse=False, feedback="help")
    )
    for tokens in (
        written,
        [opening, *written, *rest[1:]],
        [opening, *rest[:6], *written, *rest[7:]],
    ):
        feedback = WORDS.read_feedback(tokens[:LONGEST_FEEDBACK])
        if feedback is not None:
            advised = WORDS.dialogue(PROMPT, reply[:LONGEST_REPLY], feedback.feedback)
            assert len(advised) + LONGEST_REPLY <= CONTEXT
    assert len(WORDS.case(PROMPT, reply[:LONGEST_REPLY])) + LONGEST_FEEDBACK <= CONTEXT
