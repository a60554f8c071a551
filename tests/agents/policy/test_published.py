from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from agents.policy.learner import new_policy
from agents.policy.published import PublishedPolicyError, load_published, save_published
from agents.policy.tasks import TASKS

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


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A worker's output is its log: bars of transformers would fill it."""
    save_published(tmp_path, new_policy(TASKS["sorting"], 0), {})
    assert load_published(tmp_path, IDS) is not None
    assert capfd.readouterr() == ("", "")


def test_damage_is_named(tmp_path: Path) -> None:
    save_published(tmp_path, new_policy(TASKS["sorting"], 0), {})
    (weights,) = tmp_path.glob("policy-*/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(PublishedPolicyError, match=r"model\.safetensors: its hash is not"):
        load_published(tmp_path, IDS)
    weights.unlink()
    with pytest.raises(PublishedPolicyError, match=r"model\.safetensors"):
        load_published(tmp_path, IDS)
    save_published(tmp_path, new_policy(TASKS["arithmetic"], 0), {})
    with pytest.raises(PublishedPolicyError, match=f"predicts 15 ids, but the tokenizer has {IDS}"):
        load_published(tmp_path, IDS)
    (tmp_path / "policy.json").write_text("[]")
    with pytest.raises(PublishedPolicyError, match="holds no object"):
        load_published(tmp_path, IDS)
