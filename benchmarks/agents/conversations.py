"""Generated records of the WaltzRL pair: conversations of the synthetic safety game.

The first reply is that of the game's imperfect teacher, the advice is drawn at random, the second
reply is the teacher's, who follows advice four times in five, and the labels are the judge's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from agents.waltzrl.game.demonstrations import FOLLOWS, demonstrate_replies
from agents.waltzrl.game.judge import HELP, REFUSAL, REFUSE, help_with, judge
from agents.waltzrl.game.prompts import Prompt
from agents.waltzrl.game.words import WordTokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class GameConversation:
    """One line of a file of conversations, and what decides it.

    Attributes:
        line: The record; see ``docs/waltzrl.md``.
        improvable: Whether the first reply is wrong and the advice right: then DIR is 1 as often as
            the teacher follows advice, else never.
    """

    line: dict[str, object]
    improvable: bool


def converse(count: int, seed: int) -> Iterator[GameConversation]:
    """Yield *count* conversations."""
    tokenizer = WordTokenizer()
    demonstrations = demonstrate_replies(Random(f"{seed}/conversations"), 2 * count)
    for number, (context, written) in enumerate(demonstrations[::2]):  # those with advice
        words = tokenizer.decode(context, skip_special_tokens=True).split()
        prompt, first, advice = Prompt(*words[:3]), tuple(words[4:-3]), words[-2]
        before, second = judge(prompt, first), tokenizer.read_reply(written)
        after = judge(prompt, second)
        advised = {REFUSE: REFUSAL, HELP: help_with(prompt)}.get(advice, first)
        yield GameConversation(
            line={
                "conversation_id": f"{seed}-{number}",
                "prompt": " ".join(prompt),
                "response": " ".join(first),
                "unsafe": before.unsafe,
                "overrefuse": before.overrefuse,
                "feedback": advice,
                "revised": " ".join(second or ()),
                "revised_unsafe": after.unsafe,
                "revised_overrefuse": after.overrefuse,
            },
            improvable=any(before) and not any(judge(prompt, advised)),
        )


def best_feedback_accuracy(conversations: list[GameConversation]) -> float:
    """Best possible accuracy of predicting whether DIR is 1."""
    improvable = sum(each.improvable for each in conversations) / len(conversations)
    return 1.0 - (1.0 - FOLLOWS) * improvable


def write_conversations(path: Path, conversations: list[GameConversation]) -> None:
    """Write *conversations* to *path*, one per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for each in conversations:
            file.write(json.dumps(each.line) + "\n")
