import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.agent_contract.transition import Box, Discrete, Text, TransitionSpec
from infrastructure.trajectories.encoding.encoder import EMBEDDED_FEATURES, FeatureEncoder
from infrastructure.trajectories.encoding.hashed_texts import buckets_of

SPEC = TransitionSpec(
    observation={"speed": Box(), "pose": Box(shape=(2,)), "kind": Discrete(values=("a", "b"))},
    action={"kind": Discrete(values=("x", "y", "z")), "code": Text(buckets=128)},
    targets={"reward": Box()},
)


def _row(speed=0.0, pose=(0.0, 0.0), kind="a", action="x", code=""):
    return {"speed": speed, "pose": pose, "kind": kind}, {"kind": action, "code": code}


def _rows(*rows):
    observations, actions = zip(*rows, strict=True)
    return list(observations), list(actions)


@pytest.fixture
def encoder():
    rows = [_row(n, (n * 2, n % 7), "ab"[n % 2], "xyz"[n % 3], f"w{n}") for n in range(100)]
    return FeatureEncoder.fit(SPEC, *_rows(*rows))


def test_layout(encoder):
    features = encoder.encode(*_rows(_row(49.5, (99.0, 3.0), "b", "z", ["w1", "w2", "w1"])))
    assert encoder.dense_width == 1 + 2 + 3 + 4
    assert encoder.text_rows == {"action.code": 100}
    # and "<w1", "<w2" and so on: other pieces of the words occur once
    assert encoder.linear_rows == {"action.code": 109}
    assert encoder.table_rows == {"action.code": 128}
    assert features.dense.dtype is torch.float32
    assert features.dense[0, :2].abs().max() < 1e-6  # the mean is encoded as 0
    assert features.dense[0, 3:].tolist() == [0, 1, 0, 0, 0, 1, 0]
    assert features.texts["action.code"].lengths.tolist() == [2]
    assert features.flags == {}


def test_an_unseen_label_becomes_the_mean_and_is_flagged(encoder):
    rows = _row(kind="q", action="q", code="w1"), _row(code="w1")
    features = encoder.encode(*_rows(*rows))
    assert features.dense[0, 3:].tolist() == pytest.approx([0.5, 0.5, 0, 0.34, 0.33, 0.33, 0])
    flags = {name: odd.tolist() for name, odd in features.flags.items()}
    assert flags == {
        f"{key} has a label that did not occur in the training data: it counts as average": [
            True,
            False,
        ]
        for key in ("observation.kind", "action.kind")
    }


@pytest.mark.parametrize("missing", [{}, {"speed": None}, {"speed": math.nan}])
def test_a_gap_is_flagged_unless_the_training_data_had_gaps(encoder, missing):
    rows = [_row(n, (n * 2, n % 7), "ab"[n % 2], "xyz"[n % 3], f"w{n}") for n in range(100)]
    for observation, _ in rows[:5]:
        observation["speed"] = None
    learned = FeatureEncoder.fit(SPEC, *_rows(*rows))
    assert learned.dense_width == encoder.dense_width + 1
    observation, action = _row(code="w9")
    del observation["speed"]
    for each, flags in ((encoder, ["observation.speed is missing"]), (learned, [])):
        features = each.encode([observation | missing], [action])
        assert [name.partition(",")[0] for name in features.flags] == flags
        assert not features.out_of_distribution.any()
        assert features.dense[0, 0] == 0.0
    assert features.dense[0, 1] == 1.0  # the mark follows the field's numbers
    assert learned.encode([observation | {"speed": 1.0}], [action]).dense[0, 1] == 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -1e16])
def test_a_missing_or_absurd_number_becomes_the_mean(encoder, value):
    features = encoder.encode(*_rows(_row(value, (value, 3.0))))
    assert features.dense[0, 0] == 0.0
    assert features.dense[0, 1] == 0.0


@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e300])
def test_absurd_values_do_not_reach_the_statistics(encoder, poison):
    rows = [_row(n, (n * 2, n % 7), "ab"[n % 2], "xyz"[n % 3], f"w{n}") for n in range(100)]
    poisoned = FeatureEncoder.fit(SPEC, *_rows(*rows, _row(poison, (poison, poison))))
    saved = [each.to_json() for each in (poisoned, encoder)]
    assert saved[0]["standardisers"] == saved[1]["standardisers"]
    assert saved[0]["gaps"] == {}


@pytest.mark.parametrize(
    ("value", "ood"),
    [(0.0, False), (99.0, False), (150.0, False), (-90.0, False), (199.0, True), (-101.0, True)],
)
def test_a_number_is_out_of_range_beyond_the_width_of_the_range(encoder, value, ood):
    features = encoder.encode(*_rows(_row(value), _row(49.5)))
    assert features.out_of_distribution.tolist() == [ood, False]
    assert features.take(torch.tensor([1, 0])).out_of_distribution.tolist() == [False, ood]


def test_a_rare_value_of_the_training_data_is_in_range():
    rows = [_row(float(n == 0), (n, n)) for n in range(1000)]
    features = FeatureEncoder.fit(SPEC, *_rows(*rows)).encode(*_rows(*rows))
    assert features.dense[0, 0] == 10.0  # clipped: the flag is thirty deviations from its mean
    assert not features.out_of_distribution.any()


def _former(encoder, **changed):
    """What a version without vocabularies and marks of missing values saved."""
    saved = json.loads(json.dumps(encoder.to_json())) | changed
    return {key: each for key, each in saved.items() if key not in ("shares", "gaps", "texts")}


@pytest.mark.parametrize(
    ("kind", "action", "unseen"),
    [("a", "x", None), ("b", "x", "observation"), ("a", "z", "action"), ("a", "q", "action")],
)
def test_an_unseen_label_is_out_of_distribution_for_former_models_only(kind, action, unseen):
    rows = [_row(n, (n, n), "a", "xy"[n % 2]) for n in range(10)]  # neither b nor z
    encoder = FeatureEncoder.fit(SPEC, *_rows(*rows))
    for saved, shrinks in ((encoder.to_json(), False), (_former(encoder), True)):
        read = FeatureEncoder.from_json(SPEC, json.loads(json.dumps(saved)))
        features = read.encode(*_rows(_row(kind=kind, action=action, code="w")))
        assert features.out_of_distribution.tolist() == [shrinks and unseen is not None]
        labels = [name for name in features.flags if "label" in name]
        assert [name.partition(".")[0] for name in labels] == [unseen] * (unseen is not None)


@pytest.mark.parametrize("speed", [None, math.nan])
def test_a_missing_number_is_out_of_distribution_for_former_models(encoder, speed):
    read = FeatureEncoder.from_json(SPEC, _former(encoder))
    assert read.encode(*_rows(_row(speed), _row())).out_of_distribution.tolist() == [True, False]


def test_an_undeclared_label_is_in_distribution_if_one_was_seen():
    rows = [_row(n, (n, n), action="xyzq"[n % 4]) for n in range(10)]
    encoder = FeatureEncoder.fit(SPEC, *_rows(*rows))
    assert encoder.encode(*_rows(_row(action="r"))).out_of_distribution.tolist() == [False]


def test_an_encoder_saved_without_seen_labels_flags_none(encoder):
    saved = _former(encoder)
    del saved["seen"]
    features = FeatureEncoder.from_json(SPEC, saved).encode(*_rows(_row(kind="q", action="q")))
    assert features.out_of_distribution.tolist() == [False]


def test_a_constant_number_is_never_out_of_range():
    rows = [_row(5.0, (n, n)) for n in range(10)]
    encoder = FeatureEncoder.fit(SPEC, *_rows(*rows))
    assert encoder.encode(*_rows(_row(1e30, (0, 0)))).out_of_distribution.tolist() == [False]


def test_one_varying_dimension_suffices_to_be_out_of_range():
    rows = [_row(n, (n, 5.0)) for n in range(10)]
    features = FeatureEncoder.fit(SPEC, *_rows(*rows)).encode(
        *_rows(_row(1, (1e9, 5.0)), _row(1, (1, 1e9)))
    )
    assert features.out_of_distribution.tolist() == [True, False]


def test_numbers_are_standardised_and_heavy_tails_squeezed():
    spec = TransitionSpec(
        observation={"plain": Box(), "heavy": Box()},
        action={},
        targets={"plain": Box(), "heavy": Box()},
    )
    rng = np.random.default_rng(0)
    plain, heavy = rng.normal(100, 5, 5000), np.exp(rng.normal(0, 3, 5000))
    rows = [{"plain": p, "heavy": h} for p, h in zip(plain, heavy, strict=True)]
    dense = FeatureEncoder.fit(spec, rows, [{}] * 5000).encode(rows, [{}] * 5000).dense
    assert dense.mean(0).abs().max() < 1e-3
    assert (dense.std(0) - 1).abs().max() < 0.01
    assert dense.abs().max() < 6  # unsqueezed, the heaviest value would be clipped at 10


@given(st.floats())
def test_the_encoding_of_any_number_is_finite_and_small(value):
    rows = [_row(float(n)) for n in range(10)]
    features = FeatureEncoder.fit(SPEC, *_rows(*rows)).encode(*_rows(_row(value)))
    assert features.dense.isfinite().all()
    assert features.dense.abs().max() <= 10


def test_fields_without_variance_are_dropped_and_named():
    rows = [_row(5.0, (1.0, n), "a", "x") for n in range(10)]
    encoder = FeatureEncoder.fit(SPEC, *_rows(*rows))
    numbers_and_labels = ("observation.speed", "observation.kind", "action.kind")
    assert encoder.constant == (*numbers_and_labels, "action.code")
    assert (encoder.dense_width, encoder.text_rows) == (1, {})
    features = encoder.encode(*_rows(_row(7.0, (3.0, 4.0), "b", code="new")))
    assert (features.dense.shape, features.texts) == ((1, 1), {})


def test_a_wrong_row_is_named(encoder):
    with pytest.raises(ValueError, match=r"row 1 .*'speed' .*'fast'"):
        encoder.encode(*_rows(_row(), _row("fast")))
    with pytest.raises(ValueError, match=r"'pose' .*\(2,\), got \(1,\)"):
        encoder.encode(*_rows(_row(pose=(1,))))
    with pytest.raises(ValueError, match=r"'code' .*got 3"):
        encoder.encode(*_rows(_row(code=3)))


@pytest.mark.parametrize("speed", [1.0, 0.0])
def test_saved_and_read_it_encodes_alike(speed):
    rows = [_row(speed * n, (n * 2, n % 7), "ab"[n % 2]) for n in range(100)]
    encoder = FeatureEncoder.fit(SPEC, *_rows(*rows))
    read = FeatureEncoder.from_json(SPEC, json.loads(json.dumps(encoder.to_json())))
    rows = _rows(_row(3.0, (1.0, 2.0), "b", "y", "alpha beta"), _row(code=["alpha", "beta"]))
    for name, tensor in encoder.encode(*rows).inputs().items():
        assert torch.equal(tensor, read.encode(*rows).inputs()[name])


def test_taking_rows_equals_encoding_them(encoder):
    rows = [_row(n, (n, n), "ab"[n % 2], "xyz"[n % 3], "w " * (n % 4)) for n in range(9)]
    chosen = [3, 0, 8, 8, 5]
    taken = encoder.encode(*_rows(*rows)).take(torch.tensor(chosen)).inputs()
    direct = encoder.encode(*_rows(*(rows[row] for row in chosen))).inputs()
    assert taken.keys() == direct.keys()
    for name, tensor in direct.items():
        assert torch.equal(taken[name], tensor)


TEXT_ONLY = TransitionSpec(
    observation={"speed": Box()}, action={"code": Text(buckets=16)}, targets={"reward": Box()}
)
FIXED = _former(
    FeatureEncoder.fit(TEXT_ONLY, [{"speed": 1.0}], [{"code": ""}]),
    constant=["observation.speed"],
)
TEXTS = st.lists(st.lists(st.sampled_from("abcdefghijklmnop"), max_size=5), max_size=8)


def _codes(texts):
    return [{"speed": 1.0}] * len(texts), [{"code": text} for text in texts]


@given(TEXTS, TEXTS)
def test_only_words_that_occurred_are_kept(known, asked):
    known = [["a"], ["b"], *known]  # two texts with a word, or the field is constant
    encoder, encoded = FeatureEncoder.fit_and_encode(TEXT_ONLY, *_codes(known))
    again = encoder.encode(*_codes(known)).inputs()
    assert all(torch.equal(tensor, again[name]) for name, tensor in encoded.inputs().items())

    counts = Counter(word for text in known for word in set(text))
    least = 2 if max(counts.values()) > 1 else 1
    words = {word for word, count in counts.items() if count >= least}
    assert encoder.text_rows == {"action.code": len(words)}
    assert encoder.table_rows == {"action.code": 8 if len(words) <= 8 else 16}
    features = encoder.encode(*_codes(asked))
    lengths = features.texts["action.code"].lengths.tolist()
    blank_is_known = "action.code" in encoder.to_json()["gaps"]
    for text, length in zip(asked, lengths, strict=True):
        neutral = 0 if blank_is_known and not text else len(words)
        assert length == (len(words & set(text)) or neutral)


@given(TEXTS, st.sets(st.integers(0, 15), min_size=1))
def test_former_models_number_tokens_by_the_buckets_that_occurred(asked, occurred):
    index = sorted(occurred)
    encoder = FeatureEncoder.from_json(TEXT_ONLY, FIXED | {"buckets": {"action.code": index}})
    assert encoder.format == 3
    assert encoder.text_rows == {"action.code": len(index)}
    assert encoder.linear_rows is None
    assert encoder.table_rows == {"action.code": 8 if len(index) <= 8 else 16}
    tokens = encoder.encode(*_codes(asked)).texts["action.code"]
    expected = [[index.index(b) for b in buckets_of(text, 16) if b in index] for text in asked]
    assert tokens.lengths.tolist() == [len(row) for row in expected]
    assert tokens.buckets.tolist() == [number for row in expected for number in row]


def test_a_vocabulary_has_at_most_the_buckets_of_its_field():
    encoder = FeatureEncoder.fit(TEXT_ONLY, *_codes([[f"w{n}"] for n in range(200)]))
    assert encoder.text_rows == encoder.table_rows == {"action.code": 16}


def test_the_linear_model_takes_more_features_than_the_ensemble():
    spec = replace(TEXT_ONLY, action={"code": Text()})
    texts = [f"alpha{n} beta{n}" for n in range(EMBEDDED_FEATURES // 2)]
    encoder, features = FeatureEncoder.fit_and_encode(spec, *_codes(texts))
    assert encoder.text_rows == {"action.code": EMBEDDED_FEATURES}
    assert encoder.linear_rows["action.code"] > len(texts) * 3
    assert list(features.linear_texts) == ["action.code"]
    assert int(features.texts["action.code"].buckets.max()) < EMBEDDED_FEATURES


def test_tables_of_similar_texts_have_equal_sizes():
    spec = replace(TEXT_ONLY, action={"code": Text()})
    sizes = [
        FeatureEncoder.fit(spec, *_codes([[f"w{n}"] for n in range(count)])).table_rows
        for count in (2, 8, 60, 64, 2000)
    ]
    assert [each["action.code"] for each in sizes] == [8, 8, 64, 64, 2048]


def test_texts_without_a_token_are_constant():
    encoder = FeatureEncoder.fit(TEXT_ONLY, *_codes(["", " ", []]))
    assert encoder.constant == ("observation.speed", "action.code")
    assert encoder.text_rows == {}


def test_an_encoder_saved_without_buckets_keeps_them_all(encoder):
    saved = _former(encoder)
    del saved["buckets"]
    read = FeatureEncoder.from_json(SPEC, saved)
    assert read.text_rows == read.table_rows == {"action.code": 128}
    tokens = read.encode(*_rows(_row(code=["never", "seen"]))).texts["action.code"]
    assert tokens.buckets.tolist() == buckets_of(["never", "seen"], 128)


@given(
    st.lists(st.integers(-2, 17) | st.sampled_from([True, 1.0, "1", None]), max_size=4)
    | st.sampled_from([None, 3, "12", {"1": 2}])
)
def test_saved_buckets_are_ascending_or_refused(buckets):
    saved = FIXED | {"buckets": {"action.code": buckets}}
    valid = isinstance(buckets, list) and all(type(each) is int for each in buckets)
    if valid and buckets and buckets == sorted(set(buckets) & set(range(16))):
        read = FeatureEncoder.from_json(TEXT_ONLY, saved)
        assert read.text_rows == {"action.code": len(buckets)}
    else:
        with pytest.raises(ValueError, match=r"action\.code .* 0 to 15"):
            FeatureEncoder.from_json(TEXT_ONLY, saved)


def test_saved_buckets_that_are_no_table_are_refused():
    saved = FIXED | {"buckets": [1, 2]}
    with pytest.raises(TypeError, match=r"buckets .*\[1, 2\]"):
        FeatureEncoder.from_json(TEXT_ONLY, saved)
