import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.trajectories.encoding import vocabulary as module
from infrastructure.trajectories.encoding.text_features import CHARACTERS, text_features
from infrastructure.trajectories.encoding.vocabulary import Bags, Vocabulary

WORDS = st.sampled_from(["red", "green", "blue", "or", "nor", "!"]) | st.text(min_size=1)
TEXTS = st.lists(st.lists(WORDS, max_size=6), min_size=1)


def _bags(*texts: list[str]) -> Bags:
    return Bags.of(texts, characters=False)


def _fit(*texts: list[str], most: int = 100) -> Vocabulary:
    return Vocabulary.fit(_bags(*texts), np.ones(len(texts), dtype=np.int64), most)


def _feature(word: str) -> int:
    return int(text_features([[word]], characters=False)[1][0])


@given(TEXTS)
def test_bags_count_the_features_of_each_text(texts: list[list[str]]) -> None:
    bags = _bags(*texts)
    assert bags.lengths.tolist() == [len(set(text)) for text in texts]
    expected = [sorted((_feature(each), text.count(each)) for each in set(text)) for text in texts]
    counted = list(zip(bags.features.tolist(), bags.counts.tolist(), strict=True))
    assert counted == [pair for text in expected for pair in text]


@given(st.lists(st.text(), min_size=1))
def test_characters_have_a_bag_of_their_own(texts: list[str]) -> None:
    both, words = Bags.of(texts, characters=True), Bags.of(texts, characters=False)
    is_character = both.features >= CHARACTERS
    assert both.lengths[::2].tolist() == words.lengths.tolist()
    assert both.features[~is_character].tolist() == words.features.tolist()
    assert both.lengths[1::2].sum() == np.count_nonzero(is_character)


def test_many_texts_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{number} {number} word" for number in range(20)]
    whole = Bags.of(texts, characters=True)
    monkeypatch.setattr(module, "_TOGETHER", 8)
    parts = Bags.of(texts, characters=True)
    for name in ("features", "counts", "lengths"):
        assert np.array_equal(getattr(parts, name), getattr(whole, name))


def test_the_most_frequent_features_of_two_rows_or_more_are_kept() -> None:
    texts = ["c", "a"], ["c", "a"], ["c", "i", "i", "i"]
    assert _fit(*texts).features.tolist() == [_feature("c"), _feature("a")]
    assert _fit(*texts, most=1).features.tolist() == [_feature("c")]
    only = {_feature("e"), _feature("f")}
    assert set(_fit(["e"], ["f"]).features.tolist()) == only  # none is in two rows


def test_words_come_first_and_are_counted_apart() -> None:
    bags = Bags.of(["good dog", "good cat"], characters=True)
    fitted = Vocabulary.fit(bags, np.array([2, 2]), 2)
    assert (len(fitted), fitted.words, fitted.has_characters) == (4, 2, True)
    assert (fitted.features >= CHARACTERS).tolist() == [False, False, True, True]


def test_a_text_of_several_rows_counts_as_often() -> None:
    fitted = Vocabulary.fit(_bags(["d"], ["h"]), np.array([3, 1]), 100)
    assert fitted.features.tolist() == [_feature("d")]
    assert fitted.idf.tolist() == pytest.approx([1 + np.log(5 / 4)])


@given(TEXTS, TEXTS)
def test_weights_have_the_norm_1_and_unknown_features_are_dropped(
    known: list[list[str]], asked: list[list[str]]
) -> None:
    fitted = _fit(*known)
    tokens = fitted.weigh(_bags(*asked))
    features = fitted.features.tolist()
    expected = [set(map(_feature, text)) & set(features) for text in asked]
    assert tokens.lengths.tolist() == [len(each) for each in expected]
    for row, weights in enumerate(tokens.weights.split(tokens.lengths.tolist())):
        assert weights.square().sum().item() == pytest.approx(float(len(weights) > 0), abs=1e-5)
        start = int(tokens.offsets[row])
        numbers = tokens.buckets[start : start + len(weights)].tolist()
        assert {features[number] for number in numbers} == expected[row]


def test_rare_and_repeated_features_weigh_more() -> None:
    fitted = _fit(["a", "b"], ["a", "b"], ["a"])

    def weights(*text: str) -> dict[int, float]:
        tokens = fitted.weigh(_bags(list(text)))
        return dict(zip(tokens.buckets.tolist(), tokens.weights.tolist(), strict=True))

    often = fitted.features.tolist().index(_feature("a"))
    rare = 1 - often
    assert weights("a", "b")[often] < weights("a", "b")[rare]
    assert weights("a", "a", "a", "b")[often] > weights("a", "b")[often]


def test_the_mean_text_stands_for_an_unknown_one() -> None:
    fitted = _fit(["a"], ["a"], ["b"], ["b"], [])
    tokens = fitted.neutral(1)
    assert tokens.lengths.tolist() == [2]
    assert tokens.weights.tolist() == pytest.approx([0.4, 0.4], abs=1e-3)  # in FP16


@given(st.lists(st.text(), min_size=1), st.booleans())
def test_saved_and_read_it_is_equal(texts: list[str], characters: bool) -> None:
    bags = Bags.of(texts, characters=characters)
    fitted = Vocabulary.fit(bags, np.ones(len(texts), dtype=np.int64), 100)
    read = Vocabulary.from_json(json.loads(json.dumps(fitted.to_json())))
    for name in ("features", "idf", "mean", "words"):
        assert np.array_equal(getattr(read, name), getattr(fitted, name))


def test_wrong_arrays_are_refused() -> None:
    ones = np.ones(2, dtype=np.float32)
    features = np.array([1, 2], dtype=np.uint64)
    for arguments in (
        (np.array([1, 1], dtype=np.uint64), ones, ones),
        (features, ones * np.nan, ones),
        (features, ones, ones * np.inf),
    ):
        with pytest.raises(ValueError, match="hash is repeated, or a number is not finite"):
            Vocabulary(*arguments)
    with pytest.raises(ValueError, match="differ in number"):
        Vocabulary(features, ones[:1], ones)
    with pytest.raises(ValueError, match="characters are before words"):
        Vocabulary(np.array([CHARACTERS, 1], dtype=np.uint64), ones, ones)
    for words in (-1, None, "many"):
        with pytest.raises(ValueError, match="number of words"):
            Vocabulary.from_json(Vocabulary(features, ones, ones).to_json() | {"words": words})
