import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.policy.tokenizer import CharacterTokenizer, UnknownCharacterError

TOKENIZER = CharacterTokenizer("0123456789+= ")


@given(st.text(alphabet="0123456789+= "))
def test_a_text_survives(text: str) -> None:
    ids = TOKENIZER.encode(text)

    assert ids[0] == TOKENIZER.bos_token_id
    assert len(ids) == len(text) + 1
    assert all(0 <= each < len(TOKENIZER) for each in ids)
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == text
    assert TOKENIZER.encode(text, add_special_tokens=False) == ids[1:]


def test_special_tokens_are_shown_or_skipped() -> None:
    ids = [TOKENIZER.bos_token_id, 4, TOKENIZER.eos_token_id, TOKENIZER.pad_token_id]

    assert TOKENIZER.decode(ids) == "<s>1</s><pad>"
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "1"


def test_ids_beyond_the_tokenizer_are_skipped() -> None:
    assert TOKENIZER.decode([3, len(TOKENIZER), 4]) == "01"


def test_unknown_characters_are_named() -> None:
    with pytest.raises(UnknownCharacterError, match="'ab'"):
        TOKENIZER.encode("1ab")


def test_characters_that_occur_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="'1'"):
        CharacterTokenizer("121")
