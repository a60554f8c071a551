"""What is frozen comes back bit for bit; damaged, hostile and foreign files are refused."""

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infrastructure.events import Role
from infrastructure.precision_lab.experiment import in_fp32
from infrastructure.precision_lab.frozen import (
    FrozenError,
    FrozenFolder,
    load_policy_experiment,
    save_policy_experiment,
)
from infrastructure.precision_lab.frozen.folder import FrozenWriter
from tests.infrastructure.precision_lab.small_experiment import small_experiment

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab") / "frozen"
    save_policy_experiment(folder, small_experiment(), source={"task": "test"}, seed=3)
    return folder


@pytest.fixture
def copied(frozen, tmp_path):
    return Path(shutil.copytree(frozen, tmp_path / "copy"))


def _read_all(folder):
    found = FrozenFolder(folder)
    found.verify()
    return [found.weights(role) for role in found.manifest.weights], found.batches()


def _edit(folder, change):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def _replace(folder, name, content):
    """Write *content* with its own size and hash, as somebody who can edit both would."""
    import hashlib

    (folder / name).write_bytes(content)
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    _edit(folder, lambda manifest: manifest["files"].update({name: entry}))


def test_what_was_frozen_gives_the_same_outcome(frozen):
    expected = small_experiment().run(in_fp32)
    experiment = load_policy_experiment(FrozenFolder(frozen), CPU)
    found = experiment.run(in_fp32)
    assert found.quantities.keys() == expected.quantities.keys()
    assert all(torch.equal(v, expected.quantities[n]) for n, v in found.quantities.items())
    assert torch.equal(found.mask_BS, expected.mask_BS)


def test_the_manifest_has_what_a_replay_needs_in_strict_json(frozen):
    def refuse(name):
        raise AssertionError(name)

    manifest = json.loads((frozen / "manifest.json").read_text(), parse_constant=refuse)
    assert manifest["format"] == 1
    assert manifest["seed"] == 3
    assert manifest["precision"]["policy"] == "fp32/fp32/fp32"
    assert manifest["environment"]["torch"] == torch.__version__
    assert manifest["dtypes"]["batches/00000.pt"]["policy_tokens_BT"] == "int64"
    written = {str(p.relative_to(frozen)) for p in frozen.rglob("*") if p.is_file()}
    assert {*manifest["files"], "manifest.json"} == written


def test_nothing_is_written_over(frozen, tmp_path):
    with pytest.raises(FrozenError, match="another folder"):
        save_policy_experiment(frozen, small_experiment(), source={}, seed=0)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FrozenError, match=r"notes.txt"):
        save_policy_experiment(tmp_path, small_experiment(), source={}, seed=0)


def test_an_interrupted_freeze_is_no_freeze_and_can_be_repeated(copied):
    (copied / "manifest.json").unlink()
    with pytest.raises(FrozenError, match="no frozen"):
        FrozenFolder(copied)
    save_policy_experiment(copied, small_experiment(), source={}, seed=0)
    _read_all(copied)


def test_rows_of_a_larger_tensor_are_written_alone(tmp_path):
    writer = FrozenWriter(tmp_path / "frozen")
    writer.add_tensors("batches/00000.pt", {"rows": torch.zeros(100_000, 4)[:2]})
    assert (tmp_path / "frozen" / "batches" / "00000.pt").stat().st_size < 5_000


def test_a_truncated_file_is_named(copied):
    path = copied / "weights" / "policy.pt"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FrozenError, match=r"policy.pt: has \d+ bytes"):
        FrozenFolder(copied).weights(Role.POLICY)


def test_weights_of_another_freeze_are_refused(copied):
    (copied / "weights" / "policy.pt").write_bytes(
        (copied / "weights" / "reference.pt").read_bytes()
    )
    with pytest.raises(FrozenError, match=r"policy.pt: .*other weights"):
        FrozenFolder(copied).weights(Role.POLICY)


def test_weights_of_another_model_are_refused_even_with_their_hash(copied, tmp_path):
    torch.save({"lm_head.weight": torch.zeros(3, 3)}, tmp_path / "other.pt")
    _replace(copied, "weights/policy.pt", (tmp_path / "other.pt").read_bytes())
    with pytest.raises(FrozenError, match="role policy"):
        load_policy_experiment(FrozenFolder(copied), CPU)


def test_weights_of_another_type_are_refused_even_with_their_hash(copied, tmp_path):
    weights = {n: each.double() for n, each in FrozenFolder(copied).weights(Role.POLICY).items()}
    torch.save(weights, tmp_path / "other.pt")
    _replace(copied, "weights/policy.pt", (tmp_path / "other.pt").read_bytes())
    with pytest.raises(FrozenError, match="name, shape or type"):
        load_policy_experiment(FrozenFolder(copied), CPU)


def test_a_huge_architecture_is_refused_without_building_it(copied):
    _edit(copied, lambda m: m["policy"]["architecture"].update(hidden_size=1 << 20))
    with pytest.raises(FrozenError, match=r"cannot build|not those"):
        load_policy_experiment(FrozenFolder(copied), CPU)


def test_more_layers_than_tensors_are_refused_without_building_them(copied):
    _edit(copied, lambda m: m["policy"]["architecture"].update(num_hidden_layers=1 << 40))
    with pytest.raises(FrozenError, match="num_hidden_layers"):
        load_policy_experiment(FrozenFolder(copied), CPU)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [({"pad_token": 1 << 70}, "pad_token is"), ({"stop_tokens": [-1]}, "stop_tokens")],
)
def test_special_tokens_that_the_model_lacks_are_refused(copied, tokens, message):
    _edit(copied, lambda m: m["policy"].update(tokens))
    with pytest.raises(FrozenError, match=message):
        load_policy_experiment(FrozenFolder(copied), CPU)


def test_code_that_an_architecture_names_is_ignored(copied):
    names = {
        "auto_map": {"AutoConfig": "evil--Config"},
        "attn_implementation": "somebody/kernel",
        "_attn_implementation": "somebody/kernel",
    }
    _edit(copied, lambda m: m["policy"]["architecture"].update(names))
    model = load_policy_experiment(FrozenFolder(copied), CPU).models[Role.POLICY]
    assert model.config._attn_implementation == "sdpa"


class _Evil:
    def __reduce__(self):
        return os.system, ("touch pwned",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(_Evil()), "holds no tensors"),
        (b"", "holds no tensors"),
        (b"PK\x03\x04 not a zip", "holds no tensors"),
    ],
)
def test_hostile_files_are_not_unpickled(copied, content, message, monkeypatch):
    monkeypatch.chdir(copied)
    _replace(copied, "batches/00000.pt", content)
    with pytest.raises(FrozenError, match=message):
        FrozenFolder(copied).batches()
    assert not (copied / "pwned").exists()


def test_hostile_pickles_in_torch_files_are_refused(copied, tmp_path, monkeypatch):
    monkeypatch.chdir(copied)
    torch.save({"weights": _Evil()}, tmp_path / "evil.pt")
    _replace(copied, "weights/policy.pt", (tmp_path / "evil.pt").read_bytes())
    with pytest.raises(FrozenError, match="holds no tensors"):
        FrozenFolder(copied).weights(Role.POLICY)
    assert not (copied / "pwned").exists()


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a": torch.zeros(1).expand(1 << 40)}, "a claims more"),
        ({"a": torch.zeros(2, dtype=torch.float16)}, "a is float16"),
        ({"a": torch.eye(2).to_sparse()}, "a is not"),
        ({"a": "text"}, "tensors by name"),
        ([torch.zeros(1)], "tensors by name"),
    ],
)
def test_tensors_of_other_kinds_are_refused(copied, tmp_path, tensors, message):
    torch.save(tensors, tmp_path / "other.pt")
    _replace(copied, "batches/00000.pt", (tmp_path / "other.pt").read_bytes())
    with pytest.raises(FrozenError, match=message):
        FrozenFolder(copied).batches()


def test_a_batch_that_does_not_fit_the_model_is_refused(copied, tmp_path):
    batch = dict(FrozenFolder(copied).batches()[0])
    batch["policy_tokens_BT"] = batch["policy_tokens_BT"] + 100
    torch.save(batch, tmp_path / "other.pt")
    _replace(copied, "batches/00000.pt", (tmp_path / "other.pt").read_bytes())
    with pytest.raises(FrozenError, match="model lacks"):
        load_policy_experiment(FrozenFolder(copied), CPU)


def test_a_pipe_in_place_of_a_file_does_not_block(copied):
    path = copied / "weights" / "policy.pt"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FrozenError, match="regular file"):
        FrozenFolder(copied).weights(Role.POLICY)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damaged_byte_of_any_file_is_noticed(frozen, tmp_path, data):
    folder = tmp_path / "damaged"
    if not folder.exists():
        shutil.copytree(frozen, folder)
    names = sorted(FrozenFolder(frozen).manifest.files)
    path = folder / data.draw(st.sampled_from(names))
    whole = path.read_bytes()
    position = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        damaged = whole[:position]
    else:
        damaged = bytearray(whole)
        damaged[position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(damaged)
    try:
        with pytest.raises(FrozenError, match=path.name):
            _read_all(folder)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left"), r"policy.pt: .*No space left"),
        (RuntimeError("file write failed"), r"policy.pt: .*\(file write"),
    ],
)
def test_a_full_disk_leaves_no_frozen_experiment(tmp_path, monkeypatch, error, message):
    def full(*_arguments, **_options):
        raise error

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(FrozenError, match=message):
        save_policy_experiment(tmp_path / "frozen", small_experiment(), source={}, seed=0)
    monkeypatch.undo()
    save_policy_experiment(tmp_path / "frozen", small_experiment(), source={}, seed=0)
