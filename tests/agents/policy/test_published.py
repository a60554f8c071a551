from __future__ import annotations

import hashlib
import json
import resource
import shutil
from pathlib import Path

import pytest
import torch

from agents.policy.learner import new_policy
from agents.policy.published import (
    PublishedPolicyError,
    load_published,
    not_in_use,
    save_published,
)
from agents.policy.tasks import TASKS
from infrastructure.policy.adapters import adapter_rank, with_adapter

IDS = 3 + len(TASKS["sorting"].characters)


def test_a_published_policy_comes_back_and_no_file_is_a_pickle(tmp_path: Path) -> None:
    assert load_published(tmp_path, IDS) is None
    for seed in range(3):
        model = new_policy(TASKS["sorting"], seed)
        save_published(tmp_path, model, {"task": "sorting"})
        found = load_published(tmp_path, IDS)
        assert found is not None
        assert all(map(torch.equal, found.parameters(), model.parameters()))
    assert len(list(tmp_path.glob("policy-*"))) == 2, "the newest, and the one before"
    assert json.loads((tmp_path / "policy.json").read_text())["details"] == {"task": "sorting"}
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert path.suffix in (".json", ".safetensors"), "neither is unpickled"


def test_what_is_not_of_the_policy_in_use_is_known(tmp_path: Path) -> None:
    assert not_in_use(str(tmp_path), ["policy-0"]) == []
    for seed in range(2):
        save_published(tmp_path, new_policy(TASKS["sorting"], seed), {})
    names = sorted(each.name for each in tmp_path.iterdir())
    left = {*names} - {*not_in_use(str(tmp_path), names)}
    in_use = json.loads((tmp_path / "policy.json").read_text())["folder"]
    assert (len(names), left) == (3, {"policy.json", in_use})
    assert not_in_use(str(tmp_path / in_use), ["config.json"]) == []


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A worker's output is its log: bars of transformers would fill it."""
    save_published(tmp_path, new_policy(TASKS["sorting"], 0), {})
    assert load_published(tmp_path, IDS) is not None
    assert capfd.readouterr() == ("", "")


def adapted_policy(seed: int = 0, base: torch.dtype = torch.float16) -> torch.nn.Module:
    """A policy whose adapter does something."""
    model = with_adapter(new_policy(TASKS["sorting"], 0), 4, seed=seed, base=base)
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


@pytest.mark.parametrize("base", [torch.float16, torch.float32])
def test_an_adapter_is_published_alone_and_its_base_is_written_once(tmp_path: Path, base) -> None:
    save_published(tmp_path, new_policy(TASKS["sorting"], 1), {})
    written = set()
    for seed in range(3):
        model = adapted_policy(seed, base)
        save_published(tmp_path, model, {})
        (weights,) = tmp_path.glob("base-*/model.safetensors")
        written.add((weights, weights.stat().st_ino, weights.stat().st_mtime_ns))
        found = load_published(tmp_path, IDS)
        assert found is not None
        assert adapter_rank(found) == 4
        pairs = zip(found.parameters(), model.parameters(), strict=True)
        assert all(torch.equal(ours, each.float()) for ours, each in pairs)
    assert len(written) == 1
    index = json.loads((tmp_path / "policy.json").read_text())
    assert set(index["sha256"]) >= {"adapter_config.json", "adapter_model.safetensors"}
    assert "model.safetensors" not in index["sha256"]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 4, "the index, the base, the newest, and the one before"
    left = {*names} - {*not_in_use(str(tmp_path), names)}
    assert left == {"policy.json", index["folder"], index["base"]["folder"]}
    for seed in range(2):  # the base goes when no policy needs it
        save_published(tmp_path, new_policy(TASKS["sorting"], seed), {})
    assert not list(tmp_path.glob("base-*"))


def test_an_adapter_of_another_base_is_named_and_a_damaged_base_written_again(
    tmp_path: Path,
) -> None:
    save_published(tmp_path, adapted_policy(), {})
    (weights,) = tmp_path.glob("base-*/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(PublishedPolicyError, match=r"base-\w+/model\.safetensors: its hash is not"):
        load_published(tmp_path, IDS)
    save_published(tmp_path, adapted_policy(), {})
    assert load_published(tmp_path, IDS) is not None
    shutil.rmtree(weights.parent)
    with pytest.raises(PublishedPolicyError, match="base-"):
        load_published(tmp_path, IDS)


def test_damage_is_named(tmp_path: Path) -> None:
    save_published(tmp_path, new_policy(TASKS["sorting"], 0), {})
    (weights,) = tmp_path.glob("policy-*/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(PublishedPolicyError, match=r"model\.safetensors: its hash"):
        load_published(tmp_path, IDS)
    weights.unlink()
    with pytest.raises(PublishedPolicyError, match=r"model\.safetensors: .*missing"):
        load_published(tmp_path, IDS)
    save_published(tmp_path, new_policy(TASKS["arithmetic"], 0), {})
    with pytest.raises(PublishedPolicyError, match=f"15 ids.* {IDS}"):
        load_published(tmp_path, IDS)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "adapter_config.json"])
def test_a_file_that_the_index_does_not_list_is_named(tmp_path: Path, name: str) -> None:
    save_published(tmp_path, new_policy(TASKS["sorting"], 0), {})
    (folder,) = tmp_path.glob("policy-*")
    (folder / name).write_text("{}")
    with pytest.raises(PublishedPolicyError, match=f"{name}: policy.json"):
        load_published(tmp_path, IDS)


def test_weights_that_the_index_does_not_list_are_not_loaded(tmp_path: Path) -> None:
    save_published(tmp_path, new_policy(TASKS["sorting"], 0), {})
    path = tmp_path / "policy.json"
    index = json.loads(path.read_text())
    del index["sha256"]["model.safetensors"]
    path.write_text(json.dumps(index))
    with pytest.raises(PublishedPolicyError, match=r"model\.safetensors: policy\.json"):
        load_published(tmp_path, IDS)


def test_a_pickle_is_not_loaded_even_if_the_index_lists_it(tmp_path: Path) -> None:
    model = new_policy(TASKS["sorting"], 0)
    save_published(tmp_path, model, {})
    (weights,) = tmp_path.glob("policy-*/model.safetensors")
    weights.unlink()
    pickle = weights.with_name("pytorch_model.bin")
    torch.save(model.state_dict(), pickle)
    path = tmp_path / "policy.json"
    index = json.loads(path.read_text())
    del index["sha256"]["model.safetensors"]
    index["sha256"][pickle.name] = hashlib.sha256(pickle.read_bytes()).hexdigest()
    path.write_text(json.dumps(index))
    with pytest.raises(PublishedPolicyError, match="cannot load"):
        load_published(tmp_path, IDS)


@pytest.mark.parametrize(
    "index",
    ["", "[]", "{}", '{"folder": "..", "sha256": {}}', '{"folder": "a\\u0000b"}', "[" * 100_000],
    ids=["empty", "list", "object", "parent", "null", "deep"],
)
def test_a_damaged_index_is_named(tmp_path: Path, index: str) -> None:
    (tmp_path / "policy.json").write_text(index)
    with pytest.raises(PublishedPolicyError, match=r"policy\.json is damaged: .+"):
        load_published(tmp_path, IDS)
    save_published(tmp_path, new_policy(TASKS["sorting"], 0), {})
    assert load_published(tmp_path, IDS) is not None


def test_a_damaged_configuration_is_named(tmp_path: Path) -> None:
    save_published(tmp_path, new_policy(TASKS["sorting"], 0), {})
    (config,) = tmp_path.glob("policy-*/config.json")
    config.write_text(config.read_text().replace('"num_attention_heads": 4', '"x": 3'))
    with pytest.raises(PublishedPolicyError, match=r"config\.json: its hash"):
        load_published(tmp_path, IDS)


def test_a_disk_that_takes_no_weights_leaves_the_policy_in_use_alone(tmp_path: Path) -> None:
    """A limit on the size of files fails where a full disk does, in the code of safetensors."""
    first, second = (new_policy(TASKS["sorting"], seed) for seed in range(2))
    save_published(tmp_path, first, {})
    before = sorted(tmp_path.rglob("*"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match=r"policy-\w+ .*File too large"):
            save_published(tmp_path, second, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(tmp_path.rglob("*")) == before
    found = load_published(tmp_path, IDS)
    assert found is not None
    assert all(map(torch.equal, found.parameters(), first.parameters()))


def test_a_policy_whose_index_cannot_be_written_is_removed(tmp_path: Path) -> None:
    (tmp_path / "policy.json").mkdir()
    with pytest.raises(OSError, match=r"policy\.json"):
        save_published(tmp_path, new_policy(TASKS["sorting"], 0), {})
    assert [each.name for each in tmp_path.iterdir()] == ["policy.json"]
