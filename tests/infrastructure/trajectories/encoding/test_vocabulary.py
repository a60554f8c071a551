import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.trajectories.encoding import vocabulary as module
from infrastructure.trajectories.encoding.vocabulary import Bags, Vocabulary

TEXTS = st.lists(st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 5), max_size=6), min_size=1)


def _bags(*texts: list[int]) -> Bags:
    return Bags.of(np.array(text, dtype=np.uint32) for text in texts)


def _fit(*texts: list[int], most: int = 100) -> Vocabulary:
    return Vocabulary.fit(_bags(*texts), np.ones(len(texts), dtype=np.int64), most)


@given(TEXTS)
def test_bags_count_the_features_of_each_text(texts: list[list[int]]) -> None:
    bags = _bags(*texts)
    assert bags.lengths.tolist() == [len(set(text)) for text in texts]
    expected = [(each, text.count(each)) for text in texts for each in sorted(set(text))]
    assert list(zip(bags.hashes.tolist(), bags.counts.tolist(), strict=True)) == expected


def test_many_texts_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [[number, number, 7] for number in range(20)]
    whole = _bags(*texts)
    monkeypatch.setattr(module, "_TOGETHER", 8)
    parts = _bags(*texts)
    for name in ("hashes", "counts", "lengths"):
        assert np.array_equal(getattr(parts, name), getattr(whole, name))


def test_the_most_frequent_features_of_two_rows_or_more_are_kept() -> None:
    texts = [3, 1], [3, 1], [3, 9, 9, 9]
    assert _fit(*texts).hashes.tolist() == [3, 1]
    assert _fit(*texts, most=1).hashes.tolist() == [3]
    assert sorted(_fit([5], [6]).hashes.tolist()) == [5, 6]  # none is in two rows


def test_a_text_of_several_rows_counts_as_often() -> None:
    fitted = Vocabulary.fit(_bags([4], [8]), np.array([3, 1]), 100)
    assert fitted.hashes.tolist() == [4]
    assert fitted.idf.tolist() == pytest.approx([1 + np.log(5 / 4)])


@given(TEXTS, TEXTS)
def test_weights_have_the_norm_1_and_unknown_features_are_dropped(
    known: list[list[int]], asked: list[list[int]]
) -> None:
    fitted = _fit(*known)
    tokens = fitted.weigh(_bags(*asked))
    hashes = fitted.hashes.tolist()
    assert tokens.lengths.tolist() == [len(set(text) & set(hashes)) for text in asked]
    for row, weights in enumerate(tokens.weights.split(tokens.lengths.tolist())):
        assert weights.square().sum().item() == pytest.approx(float(len(weights) > 0), abs=1e-5)
        start = int(tokens.offsets[row])
        numbers = tokens.buckets[start : start + len(weights)].tolist()
        assert {hashes[number] for number in numbers} == set(asked[row]) & set(hashes)


def test_rare_and_repeated_features_weigh_more() -> None:
    fitted = _fit([1, 2], [1, 2], [1])
    weights = fitted.weigh(_bags([1, 2], [1, 1, 1, 2])).weights.tolist()
    by_hash = dict(zip([fitted.hashes[0], fitted.hashes[1]], weights[:2], strict=True))
    assert by_hash[1] < by_hash[2]
    assert weights[2] > weights[0]


def test_the_mean_text_stands_for_an_unknown_one() -> None:
    fitted = _fit([1], [1], [2], [2], [])
    tokens = fitted.neutral()
    assert tokens.lengths.tolist() == [2]
    assert tokens.weights.tolist() == pytest.approx([0.4, 0.4], abs=1e-3)  # in FP16


@given(TEXTS)
def test_saved_and_read_it_is_equal(texts: list[list[int]]) -> None:
    fitted = _fit(*texts)
    read = Vocabulary.from_json(json.loads(json.dumps(fitted.to_json())))
    for name in ("hashes", "idf", "mean"):
        assert np.array_equal(getattr(read, name), getattr(fitted, name))


def test_a_repeated_hash_and_numbers_that_are_not_finite_are_refused() -> None:
    ones = np.ones(2, dtype=np.float32)
    hashes = np.array([1, 2], dtype=np.uint32)
    for arguments in (
        (np.array([1, 1], dtype=np.uint32), ones, ones),
        (hashes, ones * np.nan, ones),
        (hashes, ones, ones * np.inf),
    ):
        with pytest.raises(ValueError, match="hash is repeated, or a number is not finite"):
            Vocabulary(*arguments)
    with pytest.raises(ValueError, match="differ in number"):
        Vocabulary(hashes, ones[:1], ones)
