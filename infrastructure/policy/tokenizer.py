"""What a policy needs of a tokenizer, and a tokenizer of single characters for small policies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Tokenizer(Protocol):
    """The part of a tokenizer of transformers that policies use."""

    @property
    def pad_token_id(self) -> int | None:
        """Id at padding; None if the tokenizer has none."""

    @property
    def eos_token_id(self) -> int | None:
        """Id that ends a completion; None if the tokenizer has none."""

    def __len__(self) -> int:
        """Number of ids."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of *text*; special tokens around it are the tokenizer's choice."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Text of *token_ids*."""


class UnknownCharacterError(ValueError):
    """A text has characters that a `CharacterTokenizer` does not know.

    Args:
        unknown: The characters.
        known: Those of the tokenizer.
    """

    def __init__(self, unknown: Iterable[str], known: str) -> None:
        super().__init__(
            f"unknown characters {''.join(sorted(set(unknown)))!r}: the tokenizer was made for "
            f"{known!r}; make it with CharacterTokenizer of all characters that texts contain"
        )


class CharacterTokenizer:
    """One token for each character, after three special tokens: padding, beginning, end.

    `encode` puts the beginning before a text and no end after it, as the tokenizers of Llama do.

    Args:
        characters: Every character that texts contain, each once; their order decides the ids.

    Raises:
        ValueError: A character occurs twice.
    """

    pad_token_id = 0
    bos_token_id = 1
    eos_token_id = 2

    def __init__(self, characters: str) -> None:
        if len(set(characters)) != len(characters):
            twice = sorted(
                {character for character in characters if characters.count(character) > 1}
            )
            raise ValueError(f"characters must differ from each other, got {twice} twice")
        self.characters = characters
        self._ids = {character: number for number, character in enumerate(characters, start=3)}

    def __len__(self) -> int:
        """Number of ids, special tokens included."""
        return 3 + len(self.characters)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of *text*, after the beginning-of-sequence token.

        Raises:
            UnknownCharacterError: The text has other characters than the tokenizer.
        """
        unknown = set(text) - self._ids.keys()
        if unknown:
            raise UnknownCharacterError(unknown, self.characters)
        ids = [self._ids[character] for character in text]
        return [self.bos_token_id, *ids] if add_special_tokens else ids

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Text of *token_ids*; special tokens are <pad>, <s> and </s>.

        Ids beyond the tokenizer's are skipped: a model may have more rows than there are tokens.
        """
        special = ("", "", "") if skip_special_tokens else ("<pad>", "<s>", "</s>")
        names = (*special, *self.characters)
        return "".join(names[token] for token in token_ids if token < len(names))
