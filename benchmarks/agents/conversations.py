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
        line: The record; see ``docs/how-to/waltzrl.md``.
        followed: Whether the last reply is accepted if the teacher follows the advice.
        repeated: Whether it is accepted if the teacher repeats the first reply.
    """

    line: dict[str, object]
    followed: bool
    repeated: bool


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
            followed=not any(judge(prompt, advised)),
            repeated=not any(before),
        )


def best_feedback_accuracy(conversations: list[GameConversation]) -> float:
    """Best possible accuracy of predicting whether the last reply is accepted.

    Where that depends on whether the teacher follows the advice, nobody can know it better than by
    how often the teacher does.
    """
    open_ends = sum(each.followed != each.repeated for each in conversations)
    return 1.0 - (1.0 - FOLLOWS) * open_ends / len(conversations)


def write_conversations(path: Path, conversations: list[GameConversation]) -> None:
    """Write *conversations* to *path*, one per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for each in conversations:
            file.write(json.dumps(each.line) + "\n")
