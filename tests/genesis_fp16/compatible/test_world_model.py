from __future__ import annotations

import asyncio
import math
import random
import subprocess
import sys

import pytest
import torch

from genesis_fp16.compatible import OutcomeTag, WorldModel, WorldState
from infrastructure.world_model import Prediction

STATE = WorldState(
    agent_name="builder",
    code_snapshot="1f",
    recent_actions=["edit"],
    metrics={"overall_score": 0.6, "correctness": 0.7},
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


class Buffer:
    """A replay buffer in memory."""

    def __init__(self, records):
        self._records = records

    def sample(self, limit=1000):
        return self._records[:limit]


def _record(number, **changes):
    draw = random.Random(number)
    score = draw.uniform(0.3, 0.9)
    return {
        "initial_state": {"metrics": {"overall_score": score, "correctness": draw.random()}},
        "actions": [draw.choice(["edit", "test", "revert"])],
        "final_outcome": "success" if draw.random() < score else "failure",
        "final_reward": draw.uniform(-0.5, 0.5),
    } | changes


EQUAL = {
    "initial_state": {"metrics": {"overall_score": 0.6}},
    "actions": ["edit"],
    "final_outcome": OutcomeTag.SUCCESS.value,
    "final_reward": 0.4,
}


@pytest.fixture(autouse=True)
def _settings(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("ENABLE_FP16_TRAINING", "GENESIS_CPU_HALF", "GENESIS_ENV_FILE"):
        monkeypatch.delenv(name, raising=False)


def _trained(records, epochs=1, batch_size=16):
    model = WorldModel()
    model.replay_buffer = Buffer(records)
    asyncio.run(model.train(num_epochs=epochs, batch_size=batch_size))
    return model


def test_its_arguments_are_accepted_with_a_deprecation():
    with pytest.warns(DeprecationWarning, match=r"use infrastructure\.world_model\.WorldModel"):
        model = WorldModel(state_dim=64, action_dim=32, hidden_dim=16)
    assert (model.state_dim, model.action_dim, model.hidden_dim) == (64, 32, 16)
    assert isinstance(model.model, torch.nn.Module)


def test_an_empty_buffer_trains_nothing_and_says_so():
    model = WorldModel()
    with pytest.warns(UserWarning, match="nothing was trained"):
        asyncio.run(model.train(num_epochs=2, batch_size=16))
    assert model.training_history == []
    prediction = asyncio.run(model.predict(current_state=STATE, proposed_action="def f(): pass"))
    assert (prediction.success_probability, prediction.confidence) == (0.5, 0.0)


@pytest.mark.parametrize("records", [[EQUAL], [EQUAL] * 4, [_record(i) for i in range(50)]])
def test_few_records_train_all_the_same_and_are_never_published(records, tmp_path):
    model = WorldModel()
    model.replay_buffer = Buffer(records)
    with pytest.warns(UserWarning, match="never published"):
        asyncio.run(model.train(num_epochs=1, batch_size=2))
    assert model.training_history[-1]["fp16_overflow_batches"] == 0
    assert math.isfinite(model.training_history[-1]["loss"])
    with pytest.raises(ValueError, match=f"{len(records)} records are fewer than 100"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("wrong", "epochs", "message"),
    [
        (5, 1, "record 1 of the replay buffer cannot be used"),
        ({**EQUAL, "final_reward": "much"}, 1, "record 1 of the replay buffer .*'much'"),
        ({**EQUAL, "initial_state": [1]}, 1, "it needs initial_state"),
        (EQUAL, 0, "epochs must be a whole number of at least 1, got 0"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_cannot_be_trained_on_is_named(wrong, epochs, message):
    with pytest.raises(ValueError, match=message):
        _trained([EQUAL, wrong], epochs=epochs)


def test_equal_records_give_a_probability_below_one():
    model = _trained([EQUAL] * 8, epochs=100, batch_size=8)
    prediction = asyncio.run(model.predict(STATE, '["edit"]'))
    assert 0.5 < prediction.success_probability < 1.0


def test_enough_records_make_a_model_that_predicts_by_either_form(tmp_path):
    model = _trained([_record(i) for i in range(300)], epochs=3)
    assert model.unpublishable == ""
    model.save(tmp_path / "model")
    with pytest.warns(DeprecationWarning, match=r"use predict\(state, action\)"):
        old = asyncio.run(model.predict(current_state=STATE, proposed_action='["edit"]'))
    new = asyncio.run(model.predict(STATE, '["edit"]'))
    assert isinstance(old, Prediction)
    assert old == new
    assert -1.0 <= old.expected_improvement <= 1.0


def test_the_outcome_is_a_target_and_never_an_input():
    records = [_record(i) for i in range(150)]
    flipped = [
        r | {"final_outcome": "failure" if r["final_outcome"] == "success" else "success"}
        for r in records
    ]
    states = [_trained(each).fitted_model.encoder.to_json() for each in (records, flipped)]
    assert states[0] == states[1]


def test_stored_trajectories_are_read_as_its_own_form():
    stored = [
        {
            "agent_id": "builder_agent_shop",
            "initial_state": {"business_id": f"b{i}"},
            "steps": [{"tool_name": "generate" if i % 2 else "copy"}],
            "final_outcome": "success" if i % 2 else "failure",
            "reward": 0.9 if i % 2 else 0.2,
        }
        for i in range(200)
    ]
    model = _trained(stored, epochs=5)
    good, bad = (asyncio.run(model.predict(STATE, f'["{tool}"]')) for tool in ("generate", "copy"))
    assert good.success_probability > 0.8
    assert bad.success_probability < 0.2


@pytest.mark.parametrize(
    ("flag", "cpu_half", "enabled"),
    [
        (None, "true", False),
        ("false", "true", False),
        ("true", "false", False),
        ("true", "true", True),
    ],
)
def test_the_environment_decides_the_precision(monkeypatch, flag, cpu_half, enabled):
    if flag is not None:
        monkeypatch.setenv("ENABLE_FP16_TRAINING", flag)
    monkeypatch.setenv("GENESIS_CPU_HALF", cpu_half)
    model = WorldModel()
    assert model.fp16_enabled is enabled
    model.replay_buffer = Buffer([_record(i) for i in range(30)])
    asyncio.run(model.train(num_epochs=1, batch_size=16))
    assert model.fp16_enabled is enabled
    stats = model._fp16_stats
    assert (stats is not None) is enabled
    if stats is not None:
        assert stats["training_steps"] > 0
        assert stats["overflow_rate"] <= 0.1


def test_the_weights_are_written_to_the_given_path(tmp_path):
    model = _trained([_record(i) for i in range(20)])
    model._save_model(str(tmp_path / "weights.pt"))
    saved = torch.load(tmp_path / "weights.pt", map_location="cpu")
    assert saved["training_history"] == model.training_history
    model.model.load_state_dict(saved["model_state"])


@pytest.mark.usefixtures("forked")
def test_installed_names_are_where_genesis_imports_them_from():
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from genesis_fp16.compatible import install; install()\n"
        "from infrastructure import OutcomeTag\n"
        "from infrastructure.training import (FP16Trainer, FP16TrainingConfig, PrecisionMode,"
        " ExtendedFP16Trainer, ExtendedFP16Config, init_distributed, cleanup_distributed)\n"
        "from infrastructure.world_model import (WorldModel, WorldState, Prediction,"
        " get_world_model, predict_outcome)\n"
        "print(OutcomeTag.SUCCESS.value, WorldModel().state_dim)\n"
        "print(get_world_model() is get_world_model())\n"
    )
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["success", "128", "True"]
