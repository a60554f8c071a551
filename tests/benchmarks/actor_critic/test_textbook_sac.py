"""The textbook's SAC learns what the example agent's parts learn."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from benchmarks.actor_critic.textbook_sac import REWARD_SCALE, TORQUE, WARM_UP, TextbookSac, train
from infrastructure.events import PrecisionState
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.parts import PartsTrainer
from tests.infrastructure.environments.acting_job import make_context

EXAMPLE = Path(__file__).parents[3] / "examples" / "sac_agent" / "sac_agent.py"
FP32 = PrecisionState(requested="fp32", effective="fp32", reason="operator")


def test_both_make_the_same_updates(tmp_path):
    spec = importlib.util.spec_from_file_location("sac_agent", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    job = example.SacAgent().build_job(make_context(tmp_path), [])
    textbook, model = TextbookSac(torch.float32), job.model
    textbook.actor.load_state_dict(model.actor.state_dict())
    textbook.critics.load_state_dict(model.critics.state_dict())
    textbook.targets.load_state_dict(model.critics.state_dict())
    config = FP16TrainingConfig(max_grad_norm=None)
    trainer = PartsTrainer(model, job.parts, job.targets, config, wish=FP32)
    for seed in range(20):
        torch.manual_seed(seed)
        state, following = torch.randn(2, 32, 3)
        action, reward, terminated = torch.rand(32, 1), torch.randn(32), torch.zeros(32)
        torch.manual_seed(seed)
        textbook.update((state, action, reward, following, terminated))
        torch.manual_seed(seed)
        batch = {"observation": state, "next_observation": following, "action": TORQUE * action}
        trainer.train_batch(batch | {"reward": reward, "terminated": terminated})
    for ours, theirs in (
        (model.actor, textbook.actor),
        (model.critics, textbook.critics),
        (model.target, textbook.targets),
    ):
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-3)
    torch.testing.assert_close(model.log_temperature, textbook.log_temperature)
    assert example.REWARD_SCALE == REWARD_SCALE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_it_trains_in_every_precision(dtype):
    before, after = (train(WARM_UP + steps, dtype, seed=1) for steps in (0, 5))
    pairs = list(zip(before.parameters(), after.parameters(), strict=True))
    assert any(not torch.equal(one, other) for one, other in pairs)
    assert all(parameter.isfinite().all() for parameter in after.parameters())
