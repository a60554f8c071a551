import json
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.trajectories.encoding.text_features import (
    CHARACTERS,
    MAX_CHARACTERS,
    is_word,
    text_features,
)
from infrastructure.trajectories.schema import normalise


def _hashes(text: str | list[str], *, characters: bool = True) -> tuple[list[int], list[int]]:
    texts, features = text_features([text], characters=characters)
    assert not texts.any()
    parts = features[features < CHARACTERS], features[features >= CHARACTERS]
    return parts[0].tolist(), parts[1].tolist()


def test_a_string_gives_words_marks_and_pairs() -> None:
    (good,), (bad,), (mark,) = (_hashes(text)[0] for text in ("good", "bad", "!"))
    words, pieces = _hashes("good bad!", characters=False)
    assert words[:3] == [good, bad, mark]
    assert len(words) == 3 + 2  # two pairs
    assert is_word(np.array(words, dtype=np.uint64)).tolist() == [True, True, False, False, False]
    assert pieces == []
    assert words[3] not in _hashes("bad good")[0]  # the order of a pair counts


def test_words_are_cut_into_runs_of_3_to_5_characters() -> None:
    assert len(_hashes("good")[1]) == 4 + 3 + 2  # of "<good>"
    assert set(_hashes("goods")[1]) & set(_hashes("good")[1])
    assert _hashes("!?")[1] == []


@pytest.mark.parametrize("text", ["喜欢", "すき", "ชอบ", "ច្បាស់"])
def test_scripts_without_spaces_are_cut_into_runs_of_up_to_3_characters(text: str) -> None:
    pieces = set(_hashes(text)[0])
    assert pieces <= set(_hashes(f"{text[0]}{text}{text[-1]}")[0])
    assert _hashes(text)[1] == []
    length = len(text)
    assert len(_hashes(text)[0]) == length + max(length - 1, 0) + max(length - 2, 0)


def test_a_list_holds_tokens_that_its_author_chose() -> None:
    words, pieces = _hashes(["Good one", "good one", "!"])
    assert len(set(words)) == 3
    assert is_word(np.array(words, dtype=np.uint64)).all()
    assert pieces == []


@given(st.lists(st.text() | st.lists(st.text(min_size=1)), max_size=5), st.booleans())
def test_texts_together_give_what_each_gives_alone(
    together: list[str | list[str]], characters: bool
) -> None:
    texts, features = text_features(together, characters=characters)
    for number, text in enumerate(together):
        alone = text_features([text], characters=characters)[1]
        assert sorted(features[texts == number].tolist()) == sorted(alone.tolist())


@given(st.text())
def test_case_and_composition_do_not_matter(text: str) -> None:
    expected = _hashes(text)
    for form in ("NFC", "NFD"):
        assert _hashes(unicodedata.normalize(form, text)) == expected
    assert normalise(normalise(text)) == normalise(text)
    assert _hashes(normalise(text)) == expected


@pytest.mark.parametrize(
    ("one", "other"), [("STRASSE", "straße"), ("Σίσυφος", "ΣΊΣΥΦΟΣ"), ("Ångström", "ångström")]
)
def test_words_of_other_case_are_equal(one: str, other: str) -> None:
    assert _hashes(one) == _hashes(other)


def test_a_text_is_read_up_to_the_limit() -> None:
    text = "a " * (MAX_CHARACTERS // 2)
    assert _hashes(f"{text}b", characters=False) == _hashes(text, characters=False)


@pytest.mark.process
def test_hashes_are_the_same_in_every_process() -> None:
    program = (
        "from infrastructure.trajectories.encoding.text_features import text_features;"
        "print(text_features(['Née 好 x'], characters=True)[1].tolist())"
    )
    output = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": "1", "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    words, pieces = _hashes("Née 好 x")
    assert json.loads(output.stdout) == words + pieces
    assert _hashes("return")[0] == [0xA79E3F0F & ~1]
