"""Checkpoints of the original trainer: they load, are never written, and wrong ones are named."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from benchmarks.measuring.textbook import Textbook
from infrastructure.training import FP16Trainer, FP16TrainingConfig
from infrastructure.training.checkpoints import CheckpointError
from infrastructure.training.checkpoints.original import read_original


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 1))


def by_hand(batch: dict[str, torch.Tensor], steps: int = 6) -> Textbook:
    """The loop that the documents print, after *steps*."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    textbook = Textbook(model, optimizer, scale=1024.0, growth_interval=4)
    for _ in range(steps):
        textbook.step(
            batch, lambda forward, b: nn.functional.mse_loss(forward(b["x"]).float(), b["y"])
        )
    return textbook


@pytest.fixture
def saved(batch) -> dict[str, Any]:
    """The documents' checkpoint, with every key."""
    textbook = by_hand(batch)
    return {
        "model_state_dict": textbook.model.state_dict(),
        "optimizer_state_dict": textbook.optimizer.state_dict(),
        "training_steps": 6,
        "overflow_steps": 2,
        "fp16_active": True,
        "scaler_state_dict": textbook.scaler.state_dict(),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "original.pt"


@pytest.fixture
def trainer() -> FP16Trainer:
    torch.manual_seed(5)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5, fused=True)
    return FP16Trainer(model, optimizer, FP16TrainingConfig(cpu_half=True, growth_interval=4))


@pytest.fixture
def refused(trainer: FP16Trainer, path: Path) -> Callable[[], str]:
    """The error of loading what lies at the path; nothing of the trainer has changed."""

    def refused() -> str:
        before = [parameter.clone() for parameter in trainer.model.parameters()]
        content = path.read_bytes()
        with pytest.raises(CheckpointError) as caught:
            trainer.load_checkpoint(path)
        for parameter, value in zip(trainer.model.parameters(), before, strict=True):
            assert torch.equal(parameter, value)
        assert trainer.get_stats()["training_steps"] == 0
        assert path.read_bytes() == content
        return str(caught.value)

    return refused


def test_a_training_goes_on_as_the_loop_that_saved_it_would(saved, trainer, path, batch, loss_fn):
    torch.save(saved, path)
    content = path.read_bytes()
    trainer.load_checkpoint(path)
    stats = trainer.get_stats()
    assert (stats["training_steps"], stats["overflow_steps"]) == (8, 2)
    assert (stats["applied_steps"], stats["fp16_steps"]) == (6, 8)
    assert stats["current_scale"] == 2048.0
    torch.manual_seed(0)
    continued = by_hand(batch, steps=9).model
    for _ in range(3):
        assert trainer.backward_and_step(trainer.training_step(batch, loss_fn))
    for name, value in continued.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name], value, rtol=1e-3, atol=1e-4)
    assert trainer.fused_step_unavailable_reason is None
    assert trainer.get_stats()["current_scale"] == 4096.0
    assert path.read_bytes() == content
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_one_saved_in_fp32_begins_with_the_scale_of_the_configuration(saved, trainer, path):
    del saved["scaler_state_dict"]
    torch.save({**saved, "fp16_active": False}, path)
    trainer.load_checkpoint(path)
    assert trainer.get_stats()["current_scale"] == 65536.0
    assert trainer.get_stats()["fp16_steps"] == 0


def test_what_was_loaded_is_saved_in_the_own_format(saved, trainer, path, tmp_path):
    torch.save(saved, path)
    trainer.load_checkpoint(path)
    trainer.save_checkpoint(tmp_path / "own.pt")
    assert (tmp_path / "own.pt.json").exists()
    trainer.load_checkpoint(tmp_path / "own.pt")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_state_dict": None}, "lacks model_state_dict (it holds model"),
        ({"optimizer_state_dict": {}}, "lacks optimizer_state_dict"),
        ({"scaler_state_dict": {}}, "lacks scaler_state_dict"),
        ({"training_steps": None, "overflow_steps": None}, "lacks training_steps, overflow_steps"),
        ({"training_steps": -1}, "has training_steps"),
        ({"overflow_steps": 1.5}, "has overflow_steps"),
        ({"training_steps": 10**30}, "has training_steps"),
        ({"fp16_active": "false"}, "has fp16_active"),
        ({"model_state_dict": [1]}, "model_state_dict that is not"),
        ({"optimizer_state_dict": {"state": 3}}, "optimizer_state_dict without"),
        ({"scaler_state_dict": {"scale": 0.0}}, "scale above 0"),
        ({"scaler_state_dict": {"scale": 1e300, "_growth_tracker": 0}}, "has a scaler_state_dict"),
    ],
)
def test_a_wrong_key_is_named(saved, path, refused, changes, message):
    torch.save({**saved, **changes}, path)
    assert message in refused()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1)), "0.weight of shape (8, 4)"),
        (nn.Sequential(nn.Linear(4, 16)), "lacks 2.weight; lacks 2.bias"),
        (nn.Sequential(*network(), nn.Linear(1, 1)), "has 3.weight, which"),
    ],
)
def test_another_model_is_refused_by_names_and_shapes(saved, path, refused, model, message):
    torch.save({**saved, "model_state_dict": model.state_dict()}, path)
    error = refused()
    assert "does not fit (" in error
    assert message in error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (torch.Tensor.to_sparse, "2.weight a real sparse_coo"),
        (torch.Tensor.long, "2.weight an integer"),
    ],
)
def test_weights_of_another_kind_are_refused(saved, path, refused, change, message):
    saved["model_state_dict"]["2.weight"] = change(saved["model_state_dict"]["2.weight"])
    torch.save(saved, path)
    assert message in refused()


def test_another_optimizer_is_refused(saved, path, refused, batch):
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.save({**saved, "optimizer_state_dict": sgd.state_dict()}, path)
    assert "it has dampening, momentum, but not betas, eps" in refused()
    few = torch.optim.Adam(list(model.parameters())[:2])
    torch.save({**saved, "optimizer_state_dict": few.state_dict()}, path)
    assert "of [2] parameters by group where this one has [4]" in refused()
    saved["optimizer_state_dict"]["state"][0]["exp_avg"] = torch.zeros(3)
    torch.save(saved, path)
    assert "has exp_avg of 0.weight of shape (3,) where it takes (16, 4)" in refused()


class Unsafe:
    """Something that only unpickling could bring back."""


@pytest.mark.parametrize("content", [{"model_state": {}}, [1, 2], torch.zeros(2), {}])
def test_a_foreign_file_is_refused(content, path, refused):
    torch.save(content, path)
    assert "has no original.pt.json" in refused()


def test_nothing_is_unpickled_and_unsafe_loading_is_not_advised(path, refused):
    torch.save({"model_state_dict": Unsafe()}, path)
    error = refused()
    assert "UnpicklingError: " in error
    assert "weights_only" not in error


def test_a_missing_file_is_reported_as_missing(trainer, tmp_path):
    with pytest.raises(CheckpointError, match=r"nowhere\.pt does not exist"):
        trainer.load_checkpoint(tmp_path / "nowhere.pt")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
KEYS = st.sampled_from(
    [
        *("model_state_dict", "optimizer_state_dict", "training_steps", "overflow_steps"),
        *("fp16_active", "scaler_state_dict", "epoch"),
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=VALUES | st.dictionaries(KEYS, VALUES))
def test_any_content_is_read_or_refused_with_a_clear_error(content, path):
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        read_original(path, torch.device("cpu"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 3000), byte=st.integers(0, 255), cut=st.booleans())
def test_any_damage_is_read_or_refused_with_a_clear_error(at, byte, cut, path):
    state = {"model_state_dict": {"w": torch.ones(2)}, "training_steps": 1, "overflow_steps": 0}
    buffer = io.BytesIO()
    torch.save({**state, "optimizer_state_dict": {"state": {}, "param_groups": []}}, buffer)
    content = bytearray(buffer.getvalue())
    at %= len(content)
    content[at] = byte
    path.write_bytes(content[:at] if cut else content)
    with suppress(CheckpointError):  # any other exception fails the test
        assert read_original(path, torch.device("cpu"))["precision"] in {"fp32", "fp16"}
