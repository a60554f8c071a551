import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.trajectories.encoding import text_column as module
from infrastructure.trajectories.encoding.text_column import (
    EncodedTexts,
    RecentTexts,
    TextColumn,
    TextRows,
)

WORDS = ["red", "green", "blue", "好", "!"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)
VALUES = st.lists(TEXTS | st.none() | st.lists(TEXTS, max_size=3) | st.text(max_size=5), min_size=1)
COLUMN = TextColumn.fit(
    TextRows.of(["red red green", "green blue", "好 blue red", "!", ""] * 3), 100
)


def _same(one: EncodedTexts, other: EncodedTexts) -> bool:
    pairs = [(one.tokens, other.tokens), (one.words, other.words)]
    return bool((one.flags_N4 == other.flags_N4).all()) and all(
        torch.equal(getattr(first, name), getattr(second, name))
        for first, second in pairs
        for name in ("buckets", "lengths", "weights")
    )


@pytest.mark.parametrize("blank_is_known", [False, True])
@given(calls=st.lists(VALUES, max_size=4))
def test_remembered_texts_are_encoded_alike(
    blank_is_known: bool, calls: list[list[object]]
) -> None:
    recent = RecentTexts(COLUMN, blank_is_known=blank_is_known)
    for values in calls:
        expected = COLUMN.encode(COLUMN.rows_of(values), blank_is_known=blank_is_known)
        assert _same(recent.encode(values), expected)


def test_many_texts_are_forgotten_and_encoded_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REMEMBERED", 12)
    recent = RecentTexts(COLUMN, blank_is_known=False)
    for values in (["red", "green"], ["red", "blue", "!"], ["green green green"], [None, "red"]):
        expected = COLUMN.encode(COLUMN.rows_of(values), blank_is_known=False)
        assert _same(recent.encode(values), expected)
        assert _same(recent.encode(values), expected)


def test_a_row_is_split_off_with_its_flags() -> None:
    encoded = COLUMN.encode(COLUMN.rows_of(["red", None, "", "unknown"]), blank_is_known=False)
    parts = list(encoded.split())
    assert [part.flags_N4[0].tolist() for part in parts] == [
        [False, False, False, False],
        [True, True, False, False],
        [False, True, False, False],
        [False, False, False, True],
    ]
    assert _same(EncodedTexts.join(parts), encoded)


def test_no_row_has_no_token() -> None:
    encoded = RecentTexts(COLUMN, blank_is_known=False).encode([])
    assert (len(encoded.tokens.lengths), len(encoded.flags_N4)) == (0, 0)
