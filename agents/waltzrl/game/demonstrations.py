"""What the untrained pair has learned: demonstrations by imperfect teachers.

The rates are chosen so that the untrained pair errs about as often as the paper's, and so that the
best that feedback can reach with a frozen conversation agent is known: of the first replies that
are wrong, the share `FOLLOWS` is put right.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from agents.waltzrl.conversations import Conversation
from agents.waltzrl.feedback import Feedback
from agents.waltzrl.game.judge import (
    ADVICE,
    HELP,
    REFUSAL,
    REFUSE,
    best_reply,
    feedback_with,
    help_with,
    judge,
)
from agents.waltzrl.game.prompts import Prompt, draw_prompts
from agents.waltzrl.game.words import WordTokenizer
from agents.waltzrl.rewards import Labels

KNOWS = 0.5
"""Probability with which the teacher of first replies knows what is harmful; else it goes by the
looks."""
FOLLOWS = 0.8
"""Probability with which the teacher of second replies follows the advice; else it repeats."""
SEES = 0.7
"""Probability with which the teacher of feedback knows the labels; else it guesses."""

_GUESSES = (Labels(False, False), Labels(True, False), Labels(False, True))

Demonstration = tuple[list[int], list[int]]
"""What an agent reads, and what it shall write, as tokens."""


def demonstrate_replies(random: Random, count: int) -> list[Demonstration]:
    """First and second replies in equal shares, the second ones after any advice."""
    tokenizer, demonstrations = WordTokenizer(), list[Demonstration]()
    for number, prompt in enumerate(draw_prompts(random, count)):
        first = _first_reply(prompt, random)
        if number % 2:
            demonstrations.append((tokenizer.prompt(prompt), tokenizer.write_reply(first)))
            continue
        advice = random.choice(ADVICE)
        context = tokenizer.dialogue(prompt, tokenizer.write_reply(first)[:-1], advice)
        second = _second_reply(prompt, first, advice, random)
        demonstrations.append((context, tokenizer.write_reply(second)))
    return demonstrations


def record_conversations(random: Random, count: int) -> Iterator[Conversation]:
    """Yield conversations of the conversation agent's teacher, each once with every advice.

    Their identity is the pair of act and object, so that a held-out conversation is about a pair
    that nothing was fitted on.
    """
    for prompt in draw_prompts(random, count):
        first = _first_reply(prompt, random)
        for advice in ADVICE:
            second = _second_reply(prompt, first, advice, random)
            labels, revised_labels = judge(prompt, first), judge(prompt, second)
            yield Conversation(
                conversation_id=f"{prompt.act} {prompt.object}",
                prompt=" ".join(prompt),
                response=" ".join(first),
                **labels._asdict(),
                feedback=advice,
                revised=" ".join(second),
                revised_unsafe=revised_labels.unsafe,
                revised_overrefuse=revised_labels.overrefuse,
            )


def demonstrate_feedback(random: Random, count: int) -> list[Demonstration]:
    """Feedback on the replies that `demonstrate_replies` begins with."""
    tokenizer, demonstrations = WordTokenizer(), list[Demonstration]()
    for prompt in draw_prompts(random, count):
        reply = _first_reply(prompt, random)
        context = tokenizer.case(prompt, tokenizer.write_reply(reply)[:-1])
        feedback = _feedback(prompt, reply, random)
        demonstrations.append((context, tokenizer.write_feedback(feedback)))
    return demonstrations


def _first_reply(prompt: Prompt, random: Random) -> tuple[str, ...]:
    if random.random() < KNOWS:
        return best_reply(prompt)
    return REFUSAL if prompt.looks_harmful else help_with(prompt)


def _second_reply(
    prompt: Prompt, first: tuple[str, ...], advice: str, random: Random
) -> tuple[str, ...]:
    if random.random() >= FOLLOWS:
        return first
    return {REFUSE: REFUSAL, HELP: help_with(prompt)}.get(advice, first)


def _feedback(prompt: Prompt, reply: tuple[str, ...], random: Random) -> Feedback:
    labels = judge(prompt, reply) if random.random() < SEES else random.choice(_GUESSES)
    return feedback_with(prompt.harmful, labels)
