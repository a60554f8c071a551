"""Learns to swing up and balance Gymnasium's Pendulum-v1 by soft actor-critic.

A complete third-party agent that acts: T. Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and
Applications", with twin critics, a tanh-Gaussian actor and a learned temperature. The library steps
the environment, keeps the replay buffer, trains the three parts and follows with the target.

Legend: B transitions or environments, 3 numbers of a state, 1 of an action.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from pathlib import Path

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from pydantic import BaseModel, Field
from torch import Tensor, nn

from infrastructure.agent_contract import (
    CONTRACT_VERSION,
    Evaluation,
    EvaluationReport,
    Forward,
    Part,
    Publication,
    RunContext,
    Schedule,
    Target,
    Transition,
)
from infrastructure.agent_contract.agent import RecordedTransitions
from infrastructure.agent_contract.on_policy_job import OnPolicyJob
from infrastructure.agent_contract.training_job import Batch
from infrastructure.environments import EnvironmentRounds, RoundOptions
from infrastructure.training.precision import Precision, PrecisionForward
from infrastructure.training.tensor_files import TensorFileError, read_tensors, write_tensors

EPISODE = 200  # steps, as Pendulum-v1 ends them
MAX_TORQUE = 2.0  # newton metres, as Pendulum-v1 clips it
REWARD_SCALE = 0.1  # keeps values small enough for the resolution of half precision
DISCOUNT, BATCH_SIZE, WARM_UP_STEPS = 0.99, 256, 1000
ROUND_STEPS = 50  # and as many updates
ROUNDS_PER_EPOCH = 38
CHOOSING, DECIDING = (1_000_000, 20), (2_000_000, 100)  # first seed of starts, and how many

Computed = MutableMapping[str, Tensor]


class SacSettings(BaseModel):
    """The operator's settings: epochs of 1,900 steps, and the width of the hidden layers."""

    epochs: int = Field(default=10, ge=1)
    hidden: int = Field(default=64, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0)


class SoftActorCritic(nn.Module):
    """The networks; actions here lie in (-1, 1)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()

        def mlp(inputs: int, outputs: int) -> nn.Module:
            layers = (nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
            return nn.Sequential(*layers, nn.Linear(hidden, outputs))

        self.actor = mlp(3, 2)
        self.critics = nn.ModuleList(mlp(4, 1) for _ in range(2))
        self.target = copy.deepcopy(self.critics)
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def policy(self, state_B3: Tensor) -> Tensor:
        """Mean and logarithm of the deviation before the tanh, ``[B, 2]``."""
        return torch.as_tensor(self.actor(state_B3))

    def values(self, state_B3: Tensor, action_B1: Tensor, *, target: bool = False) -> Tensor:
        """What both critics expect, or both targets, ``[B, 2]``."""
        inputs_B4 = torch.cat((state_B3, action_B1), dim=1)
        critics = self.target if target else self.critics
        return torch.cat([critic(inputs_B4) for critic in critics], 1)

    def temperature(self) -> Tensor:
        """Weight of the entropy, ``[]``."""
        return self.log_temperature.exp()


def sampled(forward: Forward, state_B3: Tensor) -> tuple[Tensor, Tensor]:
    """Actions ``[B, 1]`` and their log-densities ``[B]``, reparametrised, in float32."""
    mean_B1, log_std_B1 = forward.method("policy", state_B3).chunk(2, dim=1)
    normal = torch.distributions.Normal(mean_B1, log_std_B1.clamp(-20, 2).exp())
    raw_B1 = normal.rsample()
    squash_B1 = 2 * (math.log(2) - raw_B1 - nn.functional.softplus(-2 * raw_B1))
    return raw_B1.tanh(), (normal.log_prob(raw_B1) - squash_B1).sum(1)


def critic_loss(forward: Forward, batch: Batch, _computed: Computed) -> Tensor:
    """Squared error of both critics against the entropy-regularised target."""
    with torch.no_grad():
        state_B3, going_on_B = batch["next_observation"], DISCOUNT * (1 - batch["terminated"])
        action_B1, log_prob_B = sampled(forward, state_B3)
        next_B = forward.method("values", state_B3, action_B1, target=True).amin(1)
        soft_B = next_B - forward.method("temperature") * log_prob_B
        target_B = REWARD_SCALE * batch["reward"] + going_on_B * soft_B
    values_B2 = forward.method("values", batch["observation"], batch["action"] / MAX_TORQUE)
    return 2 * nn.functional.mse_loss(values_B2, target_B.unsqueeze(1).expand_as(values_B2))


def actor_loss(forward: Forward, batch: Batch, computed: Computed) -> Tensor:
    """The actor maximises value and entropy."""
    action_B1, log_prob_B = sampled(forward, batch["observation"])
    computed["log_prob"] = log_prob_B.mean()
    value_B = forward.method("values", batch["observation"], action_B1).amin(1)
    return torch.mean(forward.method("temperature").detach() * log_prob_B - value_B)


def temperature_loss(forward: Forward, _batch: Batch, computed: Computed) -> Tensor:
    """The temperature rises while the entropy is below -1, the negative size of an action."""
    return torch.log(forward.method("temperature")) * (1.0 - computed["log_prob"])


def act(forward: Forward, state_B3: Tensor, generator: torch.Generator, _: Computed) -> Tensor:
    """Sampled torques ``[B, 1]``."""
    mean_B1, log_std_B1 = forward.method("policy", state_B3).chunk(2, dim=1)
    noise_B1 = torch.randn(mean_B1.shape, generator=generator, device=mean_B1.device)
    return MAX_TORQUE * torch.tanh(mean_B1 + log_std_B1.clamp(-20, 2).exp() * noise_B1)


def pendulums(count: int = 1) -> VectorEnv:
    """So many of Pendulum-v1."""
    return gymnasium.make_vec("Pendulum-v1", num_envs=count, vectorization_mode="sync")


def returns(forward: Forward, device: str, seed: int, episodes: int) -> np.ndarray:
    """Returns of the mean action from fixed starts, float64 ``[episodes]``."""
    environments = pendulums(episodes)
    state_B3, _ = environments.reset(seed=seed)
    total_B = np.zeros(episodes)
    with torch.no_grad():
        for _ in range(EPISODE):
            mean_B1 = forward.method("policy", torch.as_tensor(state_B3, device=device))[:, :1]
            torque_B1 = (MAX_TORQUE * mean_B1.tanh()).cpu().numpy()
            state_B3, reward_B, *_ = environments.step(torque_B1)
            total_B += reward_B
    environments.close()
    return total_B


class SacAgent:
    """Publishes its networks if they beat those in use from starts that training has not seen."""

    name = "sac"
    contract_version = CONTRACT_VERSION

    def schedule(self) -> Schedule:
        """Every day; the operator's setting wins."""
        return Schedule.parse("every 24h")

    def settings_model(self) -> type[BaseModel]:
        """See `SacSettings`."""
        return SacSettings

    def collect(self, context: RunContext) -> Iterator[Transition]:
        """Nothing: each round collects with the newest weights."""
        del context
        return iter(())

    def build_job(self, context: RunContext, transitions: RecordedTransitions) -> OnPolicyJob:
        """New networks; they begin to learn from what earlier runs have recorded."""
        settings = _settings(context)
        torch.manual_seed(context.seed)
        options = RoundOptions(
            steps=ROUND_STEPS,
            updates=ROUND_STEPS,
            batch_size=BATCH_SIZE,
            warm_up_steps=WARM_UP_STEPS if len(transitions) < WARM_UP_STEPS else 0,
            rounds_per_reset=EPISODE // ROUND_STEPS,
        )
        rounds = EnvironmentRounds(context, transitions, pendulums, act, options)

        def part(name: str, trains: str, loss: Callable[..., Tensor]) -> Part:
            def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
                return torch.optim.Adam(parameters, lr=settings.learning_rate, fused=True)

            return Part(name=name, trains=[trains], optimizer=adam, loss=loss)

        def evaluate(forward: Forward) -> Evaluation:
            mean = float(returns(forward, context.device, *CHOOSING).mean())
            return Evaluation(metrics={"return": mean}, primary="return", higher_is_better=True)

        return OnPolicyJob(
            model=SoftActorCritic(settings.hidden),
            parts=[
                part("critic", "critics", critic_loss),
                part("actor", "actor", actor_loss),
                part("temperature", "log_temperature", temperature_loss),
            ],
            targets=[Target(module="target", source="critics", tau=0.005)],
            batches=rounds.batches,
            evaluate=evaluate,
            epochs=settings.epochs,
            rounds_per_epoch=ROUNDS_PER_EPOCH,
        )

    def publish(
        self, context: RunContext, model: nn.Module, report: EvaluationReport
    ) -> Publication:
        """Publish *model* if its returns are higher beyond chance (two standard errors)."""
        new_B, in_use = self._decide(context, model), self.published(context)
        metrics = {"return": float(new_B.mean()), "training_steps": float(report.steps)}
        better, told = in_use is None, "no actor is in use"
        if in_use is not None:
            gain_B = new_B - self._decide(context, in_use.to(context.device))
            metrics["gain"] = float(gain_B.mean())
            metrics["gain_error"] = float(gain_B.std(ddof=1)) / math.sqrt(len(gain_B))
            better = metrics["gain"] > 2 * metrics["gain_error"]
            told = f"{metrics['gain']:+.1f} ± {metrics['gain_error']:.1f} to the actor in use"
        if better:
            file = self.published_file(context)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(file, model.state_dict())
        reason = f"mean return {metrics['return']:.1f} of {len(new_B)} episodes, {told}"
        return Publication(published=better, reason=reason, metrics=metrics)

    def published_file(self, context: RunContext) -> Path:
        """File of the networks in use."""
        return context.agent_folder / "published" / "sac.pt"

    def published(self, context: RunContext) -> SoftActorCritic | None:
        """The networks in use; None if there are none that fit the settings."""
        file, model = self.published_file(context), SoftActorCritic(_settings(context).hidden)
        if not file.exists():
            return None
        try:
            model.load_state_dict(read_tensors(file))
        except (TensorFileError, RuntimeError) as error:
            context.logger.warning("published_model_unreadable", error=str(error))
            return None
        return model

    def _decide(self, context: RunContext, model: nn.Module) -> np.ndarray:
        forward = PrecisionForward(model, torch.device(context.device), Precision.FP32)
        return returns(forward, context.device, *DECIDING)


def _settings(context: RunContext) -> SacSettings:
    return context.settings if isinstance(context.settings, SacSettings) else SacSettings()
