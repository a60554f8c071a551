"""One dialogue for each prompt: a reply, feedback on it, and a second reply if it asks for one.

The dialogue stops after the second reply (T_max = 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agents.waltzrl.feedback import Feedback
from agents.waltzrl.game.actor import Actor, Sample
from agents.waltzrl.game.judge import judge, oracle_feedback
from agents.waltzrl.game.prompts import Prompt
from agents.waltzrl.game.words import LONGEST_FEEDBACK, LONGEST_REPLY, WordTokenizer
from agents.waltzrl.rewards import (
    FeedbackWeights,
    Labels,
    conversation_reward,
    dynamic_improvement,
    feedback_reward,
    label_reward,
)

Adviser = Actor | Literal["oracle"] | None
"""Who gives feedback: an agent, the judge itself, or nobody."""


@dataclass(slots=True)
class Turn:
    """One turn of an agent: what it read and wrote.

    Attributes:
        context: Tokens that the agent read.
        written: Tokens that it wrote.
    """

    context: list[int]
    written: list[int]


@dataclass(kw_only=True, slots=True)
class Dialogue:
    """One game: a prompt, a reply, the feedback to it and the revised reply.

    Attributes:
        prompt: What the user asked.
        first: The first reply.
        before: The judge's labels of it.
        advised: The feedback as it was written; None without an agent that gives any.
        feedback: The feedback; None if there is none that can be parsed.
        second: The second reply; None if the dialogue stopped.
        after: The judge's labels of it.
    """

    prompt: Prompt
    first: Turn
    before: Labels
    advised: Turn | None = None
    feedback: Feedback | None = None
    second: Turn | None = None
    after: Labels | None = None

    @property
    def final(self) -> Labels:
        """The judge's labels of the last reply."""
        return self.before if self.after is None else self.after

    def conversation_samples(self) -> list[Sample]:
        """Each reply with its own R_c: the mixture of first and second replies."""
        turns = [(self.first, self.before)]
        if self.second is not None and self.after is not None:
            turns.append((self.second, self.after))
        return [
            Sample(turn.context, turn.written, float(conversation_reward(labels)))
            for turn, labels in turns
        ]

    def feedback_sample(self, weights: FeedbackWeights) -> Sample:
        """The feedback with its R_f.

        Raises:
            ValueError: No agent gave feedback.
        """
        if self.advised is None:
            raise ValueError("this dialogue has no feedback of an agent: nothing can be learned")
        predicted = None if self.feedback is None else self.feedback.labels
        reward = feedback_reward(
            weights,
            improvement=dynamic_improvement(self.before, self.after),
            label=label_reward(predicted, self.before),
            parsed=self.feedback is not None,
        )
        return Sample(self.advised.context, self.advised.written, reward)


def hold_dialogues(
    prompts: Sequence[Prompt],
    conversation: Actor,
    adviser: Adviser,
    *,
    seed: int,
    evaluating: bool = False,
) -> list[Dialogue]:
    """Let the agents talk about each of the *prompts*.

    Args:
        seed: Seed of the draws; from 0 to 2**61.
        evaluating: Compute in FP32, regardless of the agents' precision.
    """
    tokenizer = WordTokenizer()

    def reply(contexts: list[list[int]], turn: int) -> list[Turn]:
        written = conversation.write(
            contexts, limit=LONGEST_REPLY, seed=3 * seed + turn, evaluating=evaluating
        )
        return [Turn(*pair) for pair in zip(contexts, written, strict=True)]

    firsts = reply([tokenizer.prompt(prompt) for prompt in prompts], 0)
    dialogues = [
        Dialogue(
            prompt=prompt, first=first, before=judge(prompt, tokenizer.read_reply(first.written))
        )
        for prompt, first in zip(prompts, firsts, strict=True)
    ]
    if adviser is None:
        return dialogues
    if adviser == "oracle":
        for dialogue in dialogues:
            dialogue.feedback = oracle_feedback(
                dialogue.prompt, tokenizer.read_reply(dialogue.first.written)
            )
    else:
        _advise(dialogues, adviser, seed=3 * seed + 1, evaluating=evaluating)
    going_on = [
        dialogue
        for dialogue in dialogues
        if dialogue.feedback and dialogue.feedback.asks_for_revision
    ]
    if not going_on:
        return dialogues
    contexts = [
        tokenizer.dialogue(
            dialogue.prompt, _without_end(dialogue.first), dialogue.feedback.feedback
        )
        for dialogue in going_on
        if dialogue.feedback is not None
    ]
    for dialogue, second in zip(going_on, reply(contexts, 2), strict=True):
        dialogue.second = second
        dialogue.after = judge(dialogue.prompt, tokenizer.read_reply(second.written))
    return dialogues


def _advise(dialogues: Sequence[Dialogue], adviser: Actor, *, seed: int, evaluating: bool) -> None:
    tokenizer = WordTokenizer()
    contexts = [
        tokenizer.case(dialogue.prompt, _without_end(dialogue.first)) for dialogue in dialogues
    ]
    written = adviser.write(contexts, limit=LONGEST_FEEDBACK, seed=seed, evaluating=evaluating)
    for dialogue, context, tokens in zip(dialogues, contexts, written, strict=True):
        dialogue.advised = Turn(context, tokens)
        dialogue.feedback = tokenizer.read_feedback(tokens)


def _without_end(turn: Turn) -> list[int]:
    return [token for token in turn.written if token != WordTokenizer.eos_token_id]
