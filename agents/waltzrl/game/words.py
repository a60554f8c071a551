"""The words of the game as tokens: what each agent reads, and the text of what it writes.

The pieces of the JSON that feedback is written in are words too, so that an agent has to learn
their order, and what it writes is parsed like any JSON.
"""

from __future__ import annotations

from collections.abc import Sequence

from agents.waltzrl.feedback import Feedback, parse_feedback
from agents.waltzrl.game.judge import ADVICE, Reply
from agents.waltzrl.game.prompts import ACTS, FRAMES, OBJECTS, Prompt

_SPECIAL = ("<pad>", "<s>", "</s>")
_REPLIES, _ADVISES, _JUDGES = "<reply>", "<feedback>", "<judge>"
_OPENING, _UNSAFE, _OVERREFUSE = '{"reasoning": "', '", "unsafe":', ', "overrefuse":'
_ADVICE, _CLOSING = ', "feedback": "', '"}'
_WORDS = (
    *(*FRAMES, *ACTS, *OBJECTS, "sorry", "sure", *ADVICE, "harmful", "harmless"),
    *(_REPLIES, _ADVISES, _JUDGES, "true", "false"),
    *(_OPENING, _UNSAFE, _OVERREFUSE, _ADVICE, _CLOSING),
)
LONGEST_REPLY = 4
"""Tokens that a reply may have, its end included: one more than it needs."""
LONGEST_FEEDBACK = 12
"""Tokens that feedback may have, its end included: two more than it needs."""
CONTEXT = 2 + len(Prompt._fields) + 2 * (LONGEST_REPLY + 1) + LONGEST_FEEDBACK
"""Longest sequence of either agent, in tokens."""


class WordTokenizer:
    """One token for each word of the game, after padding, beginning and end; a `Tokenizer`."""

    pad_token_id = 0
    bos_token_id = 1
    eos_token_id = 2

    def __init__(self) -> None:
        self._ids = {word: number for number, word in enumerate((*_SPECIAL, *_WORDS))}

    def __len__(self) -> int:
        """Number of ids, special tokens included."""
        return len(self._ids)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of the words in *text*, which spaces separate, after the beginning.

        Raises:
            KeyError: The game does not have a word.
        """
        ids = [self._ids[word] for word in text.split()]
        return [self.bos_token_id, *ids] if add_special_tokens else ids

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """The words of *token_ids*, separated by spaces; special tokens have names of their own."""
        names, first = (*_SPECIAL, *_WORDS), len(_SPECIAL) if skip_special_tokens else 0
        return " ".join(names[token_id] for token_id in token_ids if token_id >= first)

    def prompt(self, prompt: Prompt) -> list[int]:
        """What the conversation agent reads before its first reply."""
        return self.encode(f"{' '.join(prompt)} {_REPLIES}")

    def dialogue(self, prompt: Prompt, reply: Sequence[int], advice: str) -> list[int]:
        """What it reads before its second reply.

        Args:
            reply: Tokens of the first, without its end.
            advice: What the feedback agent wrote; words of the game.
        """
        return [*self.prompt(prompt), *reply, *self._encode(_ADVISES, advice, _REPLIES)]

    def case(self, prompt: Prompt, reply: Sequence[int]) -> list[int]:
        """What the feedback agent reads: *prompt* and the tokens of the *reply* to it."""
        return [*self.prompt(prompt), *reply, *self._encode(_JUDGES)]

    def write_reply(self, words: Sequence[str]) -> list[int]:
        """Tokens of a reply, with its end."""
        return [*self._encode(*words), self.eos_token_id]

    def read_reply(self, tokens: Sequence[int]) -> Reply:
        """The words of a reply; None if it did not come to an end."""
        if tokens[-1] != self.eos_token_id:
            return None
        return tuple(self.decode(list(tokens[:-1])).split())

    def write_feedback(self, feedback: Feedback) -> list[int]:
        """Tokens of *feedback* as JSON, with the end."""
        labels = ["true" if label else "false" for label in feedback.labels]
        pieces = (_OPENING, feedback.reasoning, _UNSAFE, labels[0], _OVERREFUSE, labels[1])
        ids = [self._ids[word] for word in (*pieces, _ADVICE, feedback.feedback, _CLOSING)]
        return [*ids, self.eos_token_id]

    def read_feedback(self, tokens: Sequence[int]) -> Feedback | None:
        """The feedback that *tokens* are the JSON of; None if they are not."""
        ended = tokens[-1] == self.eos_token_id
        return parse_feedback(self.decode(list(tokens[:-1])) if ended else None)

    def _encode(self, *texts: str) -> list[int]:
        return self.encode(" ".join(texts), add_special_tokens=False)
