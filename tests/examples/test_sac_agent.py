"""The example that acts: its loss functions, the conformance kit, and what it publishes."""

from pathlib import Path
from types import ModuleType

import gymnasium
import pytest
import torch

from genesis_fp16.testing import check_agent
from infrastructure.training import Precision
from infrastructure.training.precision import PrecisionForward
from tests.examples.examples import REPORT, load
from tests.infrastructure.environments.acting_job import Warnings, make_context

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return load("sac_agent")


def test_constants_are_the_environment_s(module: ModuleType) -> None:
    environment = gymnasium.make("Pendulum-v1")
    assert environment.spec.max_episode_steps == module.EPISODE
    assert environment.action_space.high.tolist() == [module.MAX_TORQUE]


def test_log_densities_are_those_of_squashed_normals(module: ModuleType) -> None:
    torch.manual_seed(1)
    model = module.SoftActorCritic(8)
    forward = PrecisionForward(model, CPU, Precision.FP32)
    state = torch.randn(50, 3)
    action, log_prob = module.sampled(forward, state)
    mean, log_std = model.policy(state).chunk(2, dim=1)
    squashed = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, log_std.exp()),
        [torch.distributions.transforms.TanhTransform()],
    )
    assert torch.allclose(squashed.log_prob(action)[:, 0], log_prob, atol=1e-4)


def test_the_better_actor_is_published(module: ModuleType, tmp_path: Path) -> None:
    agent, warnings = module.SacAgent(), Warnings()
    context = make_context(tmp_path, logger=warnings)
    pushes, brakes = (constant(module, torque) for torque in (20.0, 0.0))
    assert agent.published(context) is None
    first = agent.publish(context, pushes, REPORT)
    assert first.published
    assert "no actor is in use" in first.reason
    assert not agent.publish(context, pushes, REPORT).published
    second = agent.publish(context, brakes, REPORT)
    assert second.published
    assert second.metrics["gain"] > 2 * second.metrics["gain_error"] > 0
    assert not agent.publish(context, pushes, REPORT).published
    kept = agent.published(context).state_dict()
    assert all(torch.equal(kept[name], tensor) for name, tensor in brakes.state_dict().items())
    assert warnings.told == []
    agent.published_file(context).write_bytes(b"damaged")
    assert agent.published(context) is None
    assert [event for event, _ in warnings.told] == ["published_model_unreadable"]


def constant(module: ModuleType, raw: float) -> torch.nn.Module:
    """An actor whose torque does not depend on the state."""
    model = module.SoftActorCritic(64)
    for parameter in model.actor.parameters():
        parameter.data.zero_()
    model.actor[-1].bias.data[0] = raw
    return model


def test_a_run_takes_20_000_steps(module: ModuleType, tmp_path: Path) -> None:
    job = module.SacAgent().build_job(make_context(tmp_path), [])
    steps = job.epochs * job.rounds_per_epoch * module.ROUND_STEPS
    assert steps + module.WARM_UP_STEPS == 20_000


@pytest.mark.process
def test_it_passes_the_conformance_kit(module: ModuleType, tmp_path: Path) -> None:
    check_agent(module.SacAgent, tmp_path)
