"""The example of a Dreamer: its losses, each precision, resuming, and what it publishes."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import gymnasium
import pytest
import torch

from genesis_fp16.testing import check_agent
from infrastructure.agent_contract import Evaluation
from infrastructure.agent_contract.on_policy_job import OnPolicyJob
from infrastructure.agent_contract.parts import Computed
from infrastructure.environments import EnvironmentRounds, RoundOptions
from infrastructure.events import PrecisionState, SaveCheckpoint
from infrastructure.training import FP16TrainingConfig, Precision
from infrastructure.training.parts import PartsTrainer
from infrastructure.training.precision import PrecisionForward
from tests.examples.examples import REPORT, load
from tests.infrastructure.environments.acting_job import make_context, recorded
from tests.infrastructure.environments.test_environment_rounds import (
    KilledError,
    at_calls,
    run,
    weights,
)

CPU = torch.device("cpu")
FP32 = PrecisionState(requested="fp32", effective="fp32", reason="operator")


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return load("dreamer_agent")


def test_constants_and_scales_are_the_environment_s(module: ModuleType) -> None:
    assert gymnasium.make("Pendulum-v1").spec.max_episode_steps == module.EPISODE
    space = module.pendulums().single_action_space
    assert (space.low, space.high) == (-1, 1)
    seen = torch.from_numpy(module.pendulums(20).reset(seed=1)[0])
    assert torch.allclose(seen[:, :2].square().sum(1), torch.ones(20), atol=1e-5)
    assert seen[:, 2].abs().max() <= 1 / 8


def sequences(rows: int, length: int) -> dict[str, torch.Tensor]:
    """A batch in whose second sequence an episode begins at step 2."""
    torch.manual_seed(2)
    first = torch.zeros(rows, length)
    first[:, 0] = first[1, 2] = 1
    return {
        "observation": torch.rand(rows, length, 3),
        "action": torch.rand(rows, length, 1),
        "reward": -torch.rand(rows, length),
        "terminated": torch.zeros(rows, length),
        "first": first,
    }


def test_an_episode_does_not_see_the_one_before(module: ModuleType) -> None:
    model, batch = module.Dreamer(), sequences(2, 4)

    def features() -> torch.Tensor:
        torch.manual_seed(3)
        return model.observe(batch["observation"], batch["action"], batch["first"])[0]

    before = features()
    batch["observation"][:, 0] += 1
    batch["action"][:, 1] += 1
    unchanged = (features() == before).all(-1).tolist()
    assert unchanged == [[False] * 4, [False, False, True, True]]


def test_acting_knows_what_observing_knows(module: ModuleType) -> None:
    """The recurrent state is the same, step by step, if the stochastic state is its mean."""
    model = module.Dreamer()
    forward, state = PrecisionForward(model, CPU, Precision.FP32), {}
    actions = []
    with torch.no_grad():
        model.inputs[0].weight[:, : module.STOCHASTIC] = 0  # acting takes the mean of that state
        seen = torch.rand(2, 5, 3)
        for step in range(5):
            actions.append(module.act(forward, seen[:, step], None, state))
        acted = state["feature"][:, : module.WIDTH]
        first = torch.eye(5)[:1].expand(2, 5)
        observed = model.observe(seen, torch.stack(actions, 1), first)[0][:, -1, : module.WIDTH]
    assert torch.allclose(acted, observed, atol=1e-6)


def test_returns_are_mixed_from_all_lengths(module: ModuleType) -> None:
    reward, value = torch.tensor([[1.0], [2.0]]), torch.tensor([[9.0], [3.0], [4.0]])
    discount, mix = torch.tensor([[0.5], [0.25]]), module.LAMBDA
    last = 2 + 0.25 * 4
    first = 1 + 0.5 * ((1 - mix) * 3 + mix * last)
    mixed = module.mixed_returns(reward, discount, value)
    assert torch.allclose(mixed, torch.tensor([[first], [last]]))


def test_actor_and_critic_share_a_rollout_in_imagination(module: ModuleType) -> None:
    model = module.Dreamer()
    forward, batch = PrecisionForward(model, CPU, Precision.FP32), sequences(2, 4)
    job = module.DreamerAgent().build_job(make_context(Path("unused")), ())
    world, actor, critic = job.parts
    computed = Computed(world)
    world.loss(forward, batch, computed)
    computed.part = actor
    actor.loss(forward, batch, computed).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.actor.parameters())
    computed.part = critic
    shape = (model.horizon, 2 * 4)
    assert computed["imagined"].shape == (*shape, module.FEATURE)
    assert computed["returns"].shape == computed["weight"].shape == shape
    critic.loss(forward, batch, computed).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.critic.parameters())


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_it_trains_in_every_precision(precision: str, module: ModuleType, tmp_path: Path) -> None:
    job = module.DreamerAgent().build_job(make_context(tmp_path), ())
    job.model.horizon = 2
    wish = PrecisionState(requested=precision, effective=precision, reason="operator")
    config = FP16TrainingConfig(cpu_half=True, loss_scale=1024.0)
    trainer = PartsTrainer(job.model, job.parts, job.targets, config, wish=wish)
    assert trainer.precision.value == precision
    before = {name: tensor.clone() for name, tensor in job.model.state_dict().items()}
    for _ in range(24):
        trainer.train_batch(sequences(2, 4))
    steps = {name: (taken - skipped) for name, (taken, skipped, _) in trainer.part_totals().items()}
    assert list(steps) == ["world", "actor", "critic"]
    assert min(steps.values()) >= 20
    after = job.model.state_dict()
    assert not any(torch.equal(before[name], after[name]) for name in before)
    assert all(tensor.isfinite().all() for tensor in after.values())


def short_job(module: ModuleType, folder: Path) -> OnPolicyJob:
    """The example's job, with rounds that take a second."""
    context = make_context(folder)
    job = module.DreamerAgent().build_job(context, ())
    job.model.horizon = 3
    options = RoundOptions(
        steps=12, updates=3, batch_size=3, sequence_length=5, warm_up_steps=10, rounds_per_reset=2
    )
    rounds = EnvironmentRounds(context, (), module.pendulums, module.act, options)

    def evaluate(_forward: object) -> Evaluation:
        return REPORT.evaluation

    changed = {"batches": rounds.batches, "evaluate": evaluate}
    return replace(job, epochs=2, rounds_per_epoch=3, **changed)


def test_a_killed_run_resumes_bit_for_bit(module: ModuleType, tmp_path: Path) -> None:
    expected = short_job(module, tmp_path / "whole")
    result, _ = run(expected, tmp_path / "whole", precision=FP32)
    assert result.outcome == "done"
    killed, resumed = (short_job(module, tmp_path / "parts") for _ in range(2))
    commands = at_calls(call_5=SaveCheckpoint(), call_11=KilledError())
    with pytest.raises(KilledError):
        run(killed, tmp_path / "parts", commands, precision=FP32)
    run(resumed, tmp_path / "parts", precision=FP32)
    assert torch.equal(weights(resumed), weights(expected))
    assert recorded(tmp_path / "parts") == recorded(tmp_path / "whole")


def test_the_better_actor_is_published(module: ModuleType, tmp_path: Path) -> None:
    agent, context = module.DreamerAgent(), make_context(tmp_path)
    pushes, brakes = (constant(module, raw) for raw in (20.0, 0.0))
    first = agent.publish(context, pushes, REPORT)
    assert first.published
    assert "no networks are in use" in first.reason
    assert not agent.publish(context, pushes, REPORT).published
    second = agent.publish(context, brakes, REPORT)
    assert second.published
    assert second.metrics["return"] > first.metrics["return"]
    assert not agent.publish(context, pushes, REPORT).published
    (file,) = (tmp_path / "agent" / "published").iterdir()
    file.write_bytes(b"damaged")
    assert agent.publish(context, pushes, REPORT).published


def constant(module: ModuleType, raw: float) -> torch.nn.Module:
    """An actor whose mean action does not depend on what it sees."""
    model = module.Dreamer()
    for parameter in model.actor.parameters():
        parameter.data.zero_()
    model.actor[-1].bias.data[0] = raw
    return model


@pytest.mark.process
def test_it_passes_the_conformance_kit(module: ModuleType, tmp_path: Path) -> None:
    check_agent(module.DreamerAgent, tmp_path)
