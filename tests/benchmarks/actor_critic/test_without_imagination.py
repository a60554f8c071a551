"""The Dreamer without imagination learns actor and critic from recorded steps."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch

from benchmarks.actor_critic.without_imagination import without_imagination
from infrastructure.agent_contract.parts import Computed
from infrastructure.events import PrecisionState
from infrastructure.training import FP16TrainingConfig, Precision
from infrastructure.training.parts import PartsTrainer
from infrastructure.training.precision import PrecisionForward
from tests.infrastructure.environments.acting_job import make_context

EXAMPLE = Path(__file__).parents[3] / "examples" / "dreamer_agent"
FP32 = PrecisionState(requested="fp32", effective="fp32", reason="operator")


@pytest.fixture
def job(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(EXAMPLE)
    agent = import_module("dreamer_agent").DreamerAgent()
    return without_imagination(agent.build_job(make_context(tmp_path), ()))


def batch(second_episode: int) -> dict[str, torch.Tensor]:
    """Two sequences of 5; the first one's second episode begins with that step."""
    torch.manual_seed(1)
    first = torch.zeros(2, 5)
    first[:, 0] = first[0, second_episode] = 1
    return {
        "observation": torch.rand(2, 5, 3),
        "action": torch.rand(2, 5, 1) * 2 - 1,
        "reward": -torch.rand(2, 5),
        "terminated": torch.zeros(2, 5),
        "first": first,
    }


def test_nothing_is_imagined(job):
    def imagine(feature: torch.Tensor) -> None:
        raise AssertionError("a rollout was imagined")

    job.model.imagine = imagine
    config = FP16TrainingConfig()
    trainer = PartsTrainer(job.model, job.parts, job.targets, config, wish=FP32)
    learning = (job.model.actor, job.model.critic, job.model.target)
    before = [tensor.clone() for module in learning for tensor in module.parameters()]
    for _ in range(3):
        trainer.train_batch(batch(2))
    after = [tensor for module in learning for tensor in module.parameters()]
    assert not any(map(torch.equal, before, after))


def test_returns_stay_in_their_episodes(job):
    """The step before an episode's end counts for nothing, and steps after it for none before."""
    forward = PrecisionForward(job.model, torch.device("cpu"), Precision.FP32)
    found = []
    for extra in (0.0, 5.0):
        recorded, computed = batch(2), Computed(job.parts[1])
        recorded["reward"][0, 2:] += extra
        torch.manual_seed(2)
        computed["feature"] = torch.rand(2, 5, 72)
        job.parts[1].loss(forward, recorded, computed)
        assert computed["weight"].T.tolist() == [[1, 0, 1, 1], [1, 1, 1, 1]]
        found.append(computed["returns"].T)
    plain, changed = found
    assert (plain == changed).tolist() == [[True, True, False, False], [True] * 4]
