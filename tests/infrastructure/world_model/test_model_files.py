import base64
import copy
import hashlib
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from infrastructure.world_model import ModelFileError, WorldModel
from tests.patience import wait_until
from tests.preloaded import ForkedPopen

pytestmark = pytest.mark.process  # trains for seconds


@pytest.fixture
def saved(fitted, tmp_path):
    fitted.save(tmp_path / "published")
    return tmp_path / "published"


def _weights(folder):
    return sorted(folder.glob("weights-*.pt"))


def test_a_loaded_model_predicts_the_same(fitted, saved, record):
    observations = [t.observation for t in record()[:50]]
    actions = [t.action for t in record()[:50]]
    read = WorldModel.load(saved)
    assert read.spec == fitted.spec
    assert read.metrics == fitted.metrics
    assert read.training_history == fitted.training_history
    before = fitted.predict_batch(observations, actions)
    assert read.predict_batch(observations, actions) == before


def test_a_model_saved_without_ranges_predicts_the_same(fitted, saved, record):
    """Format 2 first had no ``low`` and ``high``: absurd numbers are recognised without them."""

    def forget(model):
        for part in ("encoder", "codec"):
            for statistics in model[part]["standardisers"].values():
                del statistics["low"], statistics["high"]

    _resave(saved, forget)
    read = WorldModel.load(saved)
    observations = [t.observation for t in record()[:50]]
    actions = [t.action for t in record()[:50]]
    before = fitted.predict_batch(observations, actions)
    assert read.predict_batch(observations, actions) == before
    absurd = {"x": (1e30, 0.0), "code": ""}
    assert read.predict_batch([absurd], actions[:1]) == fitted.predict_batch([absurd], actions[:1])


SAVED = Path(__file__).parent / "saved_format_2"


def test_a_model_saved_by_a_former_version_predicts_the_same():
    """Written by commit 5f38b5b with its predictions, including out-of-distribution rows."""
    rows = json.loads((SAVED / "predictions.json").read_text())
    model = WorldModel.load(SAVED)
    answers = model.predict_batch(
        [row["observation"] for row in rows], [row["action"] for row in rows]
    )
    for row, answer in zip(rows, answers, strict=True):
        assert answer.success_probability == pytest.approx(row["success_probability"], abs=1e-5)
        assert answer.expected_improvement == pytest.approx(row["expected_improvement"], abs=1e-4)
        for name, deviations in row["deviations"].items():
            assert answer.deviations[name] == pytest.approx(deviations, abs=1e-4)
        assert answer.next_state["outcome"] == row["next_state"]["outcome"]
        assert answer.next_state["x"] == pytest.approx(row["next_state"]["x"], abs=1e-4, rel=1e-6)
    assert "propensities" in answers[0].reasoning
    assert len(model.training_history) == 4


def test_a_saved_model_has_the_keys_that_former_versions_read(saved):
    """A deployment without texts can be rolled back without losing its published model."""
    before, now = (json.loads((folder / "model.json").read_text()) for folder in (SAVED, saved))
    assert (before["format"], now["format"]) == (2, 5)  # its linear model crosses inputs
    assert now.keys() == before.keys()
    assert now["model"].keys() >= before["model"].keys()
    for part in ("spec", "encoder", "codec", "calibration", "network", "weights", "extra"):
        assert now["model"][part].keys() >= before["model"][part].keys(), part
    for part in ("encoder", "codec"):
        statistics = [
            {frozenset(each) for each in index["model"][part]["standardisers"].values()}
            for index in (before, now)
        ]
        assert statistics[0] == statistics[1]
    assert now["model"]["extra"]["training_history"][0].keys() == (
        before["model"]["extra"]["training_history"][0].keys()
    )
    states = [
        torch.load(next(folder.glob("weights-*.pt")), weights_only=True)
        for folder in (SAVED, saved)
    ]
    pieces = {"embeddings.1.bag.weight", "crossed"}  # of the linear model alone
    assert states[0]["ensemble"].keys() == states[1]["ensemble"].keys()
    assert states[0]["linear"].keys() == states[1]["linear"].keys() - pieces


def test_a_model_without_texts_can_be_read_by_former_versions(noise, tmp_path):
    model = WorldModel(noise.spec, members=1, hidden=4)
    with pytest.warns(UserWarning, match="constant fields"):
        model.fit(noise.transitions[:1000], epochs=1)
    model.save(tmp_path)
    assert json.loads((tmp_path / "model.json").read_text())["format"] == 2


def _resave(folder, change):
    """Change the index of the model in *folder*, and give it the hash of its content."""
    index = json.loads((folder / "model.json").read_text())
    change(index["model"])
    text = json.dumps(index["model"], sort_keys=True)
    index["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "model.json").write_text(json.dumps(index))


def test_weights_are_saved_only_for_tokens_that_occurred(fitted, saved):
    encoder = json.loads((saved / "model.json").read_text())["model"]["encoder"]
    texts = encoder["texts"]["observation.code"]
    words, features = texts["words"], len(base64.b64decode(texts["hashes"])) // 4
    assert words < fitted.fitted_model.encoder.table_rows["observation.code"] < 128
    states = torch.load(_weights(saved)[0], weights_only=True)
    tables = [states[part]["embeddings.0.bag.weight"] for part in ("ensemble", "linear")]
    assert [len(table) for table in tables] == [words, features]
    for table in tables:
        assert table.untyped_storage().nbytes() == table.nbytes


def test_weights_beyond_the_range_of_fp16_are_not_halved(fitted, saved, tmp_path):
    model = WorldModel.load(saved)
    table = dict(model.fitted_model.ensemble.named_parameters())["embeddings.0.bag.weight"]
    with torch.no_grad():
        table[0, 0] = -1e5
    with pytest.raises(ValueError, match=r"embeddings\.0\.bag\.weight .*1e\+05.*half=False"):
        model.save(tmp_path / "half", half=True)
    model.save(tmp_path / "whole")
    assert not (tmp_path / "half" / "model.json").exists()


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda saved: saved | {"mean": ""}, "hashes, .* differ in number"),
        (lambda saved: saved | {"hashes": "AAAA" * 8}, "hash"),
        (lambda saved: saved | {"idf": "?"}, "not base64"),
        (lambda saved: saved | {"words": -1}, "number of words"),
        (lambda saved: {"words": 0, "hashes": saved["hashes"]}, "idf"),
        (lambda _: {"words": 0, "hashes": "", "idf": "", "mean": ""}, "size mismatch"),
    ],
)
def test_a_corrupt_vocabulary_is_named_with_the_remedy(saved, damage, problem):
    def change(model):
        texts = model["encoder"]["texts"]
        texts["observation.code"] = damage(texts["observation.code"])

    _resave(saved, change)
    with pytest.raises(ModelFileError, match=rf"(?s){problem}.* or remove it"):
        WorldModel.load(saved)


@pytest.mark.parametrize("buckets", [[5, 5], [1, 2]])
def test_a_corrupt_index_of_tokens_is_named_with_the_remedy(fitted, saved, buckets):
    """Of a model that a version without vocabularies saved."""

    def change(model):
        encoder = model["encoder"]
        model["encoder"] = {
            key: encoder[key] for key in ("standardisers", "seen", "constant", "buckets")
        } | {"buckets": {"observation.code": buckets}}

    _resave(saved, change)
    problem = "size mismatch"
    if buckets == [5, 5]:
        problem = r"buckets of observation\.code must be .* in ascending order"
    with pytest.raises(ModelFileError, match=rf"(?s){problem}.* or remove it"):
        WorldModel.load(saved)


@pytest.mark.parametrize(
    "path",
    [
        "encoder standardisers observation.x mean",
        "encoder seen action.kind",
        "encoder shares action.kind",
        "encoder examples action.kind",
        "codec standardisers reward scale",
        "codec frequencies outcome",
        "calibration scales reward",
        "calibration temperatures outcome",
        "blend",
    ],
)
@pytest.mark.parametrize("forged", [[[]], "x", {"x": [0]}, [1e308] * 100])
def test_a_forged_index_with_a_right_hash_is_refused_when_it_is_loaded(saved, path, forged):
    def change(model):
        *within, last = path.split()
        for key in within:
            model = model[key]
        model[last] = forged

    _resave(saved, change)
    with pytest.raises(ModelFileError, match="or remove it"):
        WorldModel.load(saved)


@pytest.mark.parametrize(
    ("path", "forged", "told"),
    [
        ("temperatures outcome", -1.0, "temperature of outcome must lie in .*got -1.0"),
        ("temperatures outcome", math.nan, "temperature of outcome must lie in .*got nan"),
        ("scales reward", [0.0], "scale of reward must lie in"),
        ("scales reward", [1.0, 1.0], "calibration of reward has differing dimensions"),
        ("tails reward", [0.9], "tail of reward must lie in 0 to 0.5, got 0.9"),
        ("intervals reward", [-3.0], "interval of reward must lie in"),
        ("success", [-1.0, 0.0], "line of success of slope must lie in"),
    ],
)
def test_forged_numbers_of_a_calibration_are_refused_with_words(saved, path, forged, told):
    def change(model):
        *within, last = path.split()
        place = model["calibration"]
        for key in within:
            place = place[key]
        place[last] = forged

    _resave(saved, change)
    with pytest.raises(ModelFileError, match=f"(?s){told}.* or remove it"):
        WorldModel.load(saved)


def test_forged_weights_of_a_blend_are_refused_with_words(saved):
    _resave(saved, lambda model: model["blend"].update(outcome=[0.9, 0.9]))
    with pytest.raises(ModelFileError, match=r"weights of outcome must .* add up to at most 1"):
        WorldModel.load(saved)


@pytest.mark.parametrize("weight", [math.nan, 1e30])
def test_weights_that_predict_nothing_finite_are_refused(fitted, tmp_path, weight):
    model = fitted.fitted_model
    damaged = copy.deepcopy(model.ensemble), copy.deepcopy(model.linear)
    with torch.no_grad():
        for parameter in itertools.chain(*(network.parameters() for network in damaged)):
            parameter.fill_(weight)
    altered = replace(model, ensemble=damaged[0], linear=damaged[1])
    WorldModel.from_fitted(altered, {}).save(tmp_path)
    with pytest.raises(ModelFileError, match=r"not finite: its weights are damaged.* or remove it"):
        WorldModel.load(tmp_path)


def test_nothing_to_load_and_nothing_to_save(tmp_path):
    with pytest.raises(FileNotFoundError):
        WorldModel.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="never fitted"):
        WorldModel().save(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "gone"])
def test_damaged_weights_are_named_with_the_remedy(saved, damage):
    (weights,) = _weights(saved)
    data = bytearray(weights.read_bytes())
    if damage == "gone":
        weights.unlink()
    else:
        data[len(data) // 2] ^= 1
        weights.write_bytes({"cut": data[:-100], "flip": data, "empty": b""}[damage])
    with pytest.raises(ModelFileError, match=rf"(?s){weights}.* or remove it"):
        WorldModel.load(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[1, 2]",
        lambda text: "{}",
        lambda text: text.replace('"format": 5', '"format": 1'),
        lambda text: text.replace('"format": 5', '"format": 6'),
        lambda text: text.replace('"members": 3', '"members": 4'),
        lambda text: text.replace("0.", "1.", 1),
    ],
)
def test_a_damaged_index_is_named_with_the_remedy(saved, change):
    index = saved / "model.json"
    index.write_text(change(index.read_text()))
    with pytest.raises(ModelFileError, match=rf"(?s){index}.* or remove it"):
        WorldModel.load(saved)


@pytest.mark.parametrize("name", ["model.json", "weights-*.pt"])
def test_a_folder_in_the_place_of_a_file_is_named(saved, name):
    (path,) = saved.glob(name)
    path.unlink()
    path.mkdir()
    with pytest.raises(ModelFileError, match=f"{path}: it is a folder"):
        WorldModel.load(saved)


@pytest.mark.parametrize("within", ["", "se-darwin/published"])
def test_a_file_in_the_place_of_a_folder_is_named(tmp_path, within):
    file = tmp_path / "agents"
    file.touch()
    with pytest.raises(ModelFileError, match=f"{file} is a file"):
        WorldModel.load(file / within)


def test_an_index_of_another_version_is_refused_regardless_of_its_content(saved):
    index = saved / "model.json"
    description = json.loads(index.read_text())["model"]
    for key in set(description) - {"extra", "network"}:
        for wrong in (None, "x", [], {}):
            other = description | {key: wrong}
            digest = hashlib.sha256(json.dumps(other, sort_keys=True).encode()).hexdigest()
            index.write_text(json.dumps({"format": 1, "sha256": digest, "model": other}))
            with pytest.raises(ModelFileError, match="remove it"):
                WorldModel.load(saved)


def test_old_weights_are_removed(fitted, saved, small_models):
    for model in (*small_models, fitted):
        model.save(saved)
    assert len(_weights(saved)) == 2  # the one in use, and the one a reader may be opening
    assert {path.name for path in saved.iterdir()} == {
        "model.json",
        *(path.name for path in _weights(saved)),
    }


@pytest.mark.process
def test_a_writer_killed_at_any_time_leaves_a_whole_model(fitted, saved, tmp_path, small_models):
    other = small_models[0]
    other.save(tmp_path / "other")
    shutil.copytree(saved, tmp_path / "first")
    program = """
import itertools, sys
from pathlib import Path
from infrastructure.world_model import WorldModel
models = [WorldModel.load(Path(folder)) for folder in sys.argv[2:]]
for model in itertools.cycle(models):
    model.save(Path(sys.argv[1]))
    print(flush=True)
"""
    writer = ForkedPopen(
        [sys.executable, "-P", "-c", program, saved, tmp_path / "first", tmp_path / "other"],
        stdout=subprocess.PIPE,
    )
    writer.stdout.readline()
    known = [fitted.metrics, other.metrics]
    seen = [WorldModel.load(saved).metrics for _ in range(30)]

    def has_seen_both() -> bool:
        seen.append(WorldModel.load(saved).metrics)
        return all(metrics in seen for metrics in known)

    wait_until(has_seen_both, "both models")
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate(timeout=300)
    seen.append(WorldModel.load(saved).metrics)
    assert all(metrics in known for metrics in seen)
