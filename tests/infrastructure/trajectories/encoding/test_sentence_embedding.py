import json
import math
import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model2vec import StaticModel
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from infrastructure.agent_contract.transition import Box, Text, Transition, TransitionSpec
from infrastructure.trajectories.encoding import FeatureEncoder
from infrastructure.trajectories.encoding.sentence_embedding import (
    EmbeddingError,
    FittedEmbedding,
    SentenceEmbedding,
    sentence_embedding,
)
from infrastructure.trajectories.schema import spec_from_json, spec_to_json
from infrastructure.world_model import WorldModel
from infrastructure.world_model.model_files import ModelFileError

WORDS = [f"warm{number}" for number in range(200)] + [f"cold{number}" for number in range(200)]


def _save(folder: Path, *, seed: int = 0) -> Path:
    """Save a tiny model: the first number of a word's vector says whether it is warm."""
    vocabulary = {"[UNK]": 0} | {word: number for number, word in enumerate(WORDS, 1)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    vectors = np.random.default_rng(seed).normal(0, 0.1, (len(vocabulary), 4)).astype(np.float32)
    vectors[:, 0] = [0.0, *(1.0 if word.startswith("warm") else -1.0 for word in WORDS)]
    StaticModel(vectors, tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _save(tmp_path_factory.mktemp("embedding"))


def _spec(name: str) -> TransitionSpec:
    return TransitionSpec(
        observation={"text": Text(embedding=name)}, action={}, targets={"y": Box()}
    )


def test_a_text_is_the_mean_of_its_words(folder: Path) -> None:
    model = SentenceEmbedding(str(folder))
    one, other, both, listed = model.encode(["warm1", "cold1", "warm1 cold1", ["warm1", "cold1"]])
    assert model.width == 4
    assert both.tolist() == pytest.approx(((one + other) / 2).tolist(), abs=1e-6)
    assert both.tolist() == listed.tolist()


@pytest.fixture(scope="module")
def fitted(folder: Path) -> FittedEmbedding:
    return FittedEmbedding.fit(str(folder), ["warm1 warm2", "cold1", "cold2 warm3", "cold9"])


@given(st.lists(st.none() | st.text(max_size=20) | st.lists(st.text(max_size=5), max_size=3)))
def test_any_text_has_a_vector_or_none(fitted: FittedEmbedding, values: list[object]) -> None:
    embedded = fitted.apply(values)
    assert embedded.shape == (len(values), fitted.width)
    assert bool(embedded.isfinite().all())
    for row, value in zip(embedded, values, strict=True):
        text = " ".join(value) if isinstance(value, list) else value
        if not (isinstance(text, str) and text.strip()):
            assert not bool(row.any())


def test_a_package_may_ship_a_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "embeddings_for_a_test"
    _save(package / "tiny")
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    packaged = SentenceEmbedding("embeddings_for_a_test:tiny")
    assert packaged.sha256 == SentenceEmbedding(str(folder)).sha256
    assert "embeddings_for_a_test" not in sys.modules


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("minishlab/potion-base-8M", "is not a folder, and nothing is downloaded"),
        ("no_such_package:model", "package 'no_such_package' is not installed"),
        ("json:model", "is not a folder"),
    ],
)
def test_a_missing_model_is_named_with_the_remedy(name: str, problem: str) -> None:
    with pytest.raises(EmbeddingError, match=problem) as caught:
        SentenceEmbedding(name)
    assert repr(name) in str(caught.value)


def test_a_damaged_model_is_named(tmp_path: Path) -> None:
    folder = _save(tmp_path / "damaged")
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(EmbeddingError, match="no model of model2vec"):
        SentenceEmbedding(str(folder))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(EmbeddingError, match=r"tokenizer\.json cannot be read"):
        SentenceEmbedding(str(folder))


def test_a_spec_keeps_the_name(folder: Path) -> None:
    spec = _spec(str(folder))
    assert spec_from_json(json.loads(json.dumps(spec_to_json(spec)))) == spec
    plain = replace(spec, observation={"text": Text()})
    assert plain != spec
    assert "embedding" not in json.dumps(spec_to_json(plain))


def test_an_encoder_appends_the_vectors(folder: Path) -> None:
    rows = [{"text": f"warm{number % 3}"} for number in range(30)] + [{"text": None}] * 10
    encoder = FeatureEncoder.fit(_spec(str(folder)), rows, [{}] * 40)
    features = encoder.encode([{"text": "warm1"}, {"text": None}], [{}, {}])
    assert encoder.dense_width == features.dense.shape[1] == 1 + 3  # the first number is constant
    assert features.dense[1].tolist() == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.process  # trains for seconds
def test_a_model_understands_words_that_it_never_saw(tmp_path: Path) -> None:
    folder, generator, rows = _save(tmp_path / "tiny"), random.Random(0), []
    for number in range(400):
        word = generator.choice(WORDS[:150] + WORDS[200:350])
        y = 3.0 * word.startswith("warm") + generator.gauss(0, 0.1)
        observation = {"text": f"a {word} day"}
        rows.append(
            Transition(
                group=f"g{number}", observation=observation, action={}, next_observation={"y": y}
            )
        )
    model = WorldModel(_spec(str(folder)), members=2, hidden=16)
    model.fit(rows, epochs=10, batch_size=64, device="cpu", precision="fp32")
    model.save(tmp_path / "model")
    read = WorldModel.load(tmp_path / "model")
    for word, expected in (("warm170", 3.0), ("cold170", 0.0)):
        answers = [m.predict_batch([{"text": f"a {word} day"}], [{}])[0] for m in (model, read)]
        assert answers[0].next_state["y"] == pytest.approx(expected, abs=0.8)
        assert answers[1].next_state["y"] == answers[0].next_state["y"]
    assert math.isfinite(read.predict_batch([{"text": None}], [{}])[0].next_state["y"])
    _save(tmp_path / "tiny", seed=1)
    sentence_embedding.cache_clear()
    with pytest.raises(ModelFileError, match="put those files back, or train again"):
        WorldModel.load(tmp_path / "model")
