"""Learns to swing up Gymnasium's Pendulum-v1 in the imagination of a recurrent world model.

A complete third-party agent after D. Hafner et al. 2020, "Dream to Control": a recurrent
state-space model of observations, rewards and ends of episodes; an actor that learns by gradients
through imagined steps; a critic of these. The library does the rest.

Legend: B sequences or environments, T steps, N imagined rollouts, H imagined steps, 3 numbers of an
observation, 1 of an action, F of a feature: a recurrent and a stochastic (S) state.
"""

from collections.abc import Iterator, MutableMapping
from functools import partial

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from gymnasium.wrappers.vector import RescaleAction, RescaleObservation
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional

from infrastructure import agent_contract as contract
from infrastructure.agent_contract import Forward, Part, RunContext, Target, Transition
from infrastructure.agent_contract.agent import RecordedTransitions
from infrastructure.agent_contract.on_policy_job import OnPolicyJob
from infrastructure.agent_contract.training_job import Batch
from infrastructure.environments import EnvironmentRounds, RoundOptions
from infrastructure.training.precision import Precision, PrecisionForward
from infrastructure.training.tensor_files import TensorFileError, read_tensors, write_tensors

EPISODE = 200  # steps, as Pendulum-v1 ends them; also those of a round
REWARD_SCALE = 0.1  # keeps values small enough for the resolution of half precision
DISCOUNT, LAMBDA, ENTROPY = 0.99, 0.95, 1e-3
WIDTH, STOCHASTIC, FEATURE = 64, 8, 64 + 8
FREE_NATS, SHARPNESS = 1.0, 50.0  # divergence that costs nothing; weight of what was measured
WORLD = ("encoder", "inputs", "cell", "prior", "posterior", "decoder", "outcome")
CHOOSING, DECIDING = (1_000_000, 20), (2_000_000, 100)  # first seed of starts, and how many

Tensors = MutableMapping[str, Tensor]


def normal(raw: Tensor) -> Normal:
    """The normal distributions that a network has given."""
    mean, deviation = raw.chunk(2, -1)
    return Normal(mean, functional.softplus(deviation) + 0.1, validate_args=False)


class Dreamer(nn.Module):
    """The networks; observations and actions lie in (-1, 1)."""

    def __init__(self) -> None:
        super().__init__()

        def mlp(inputs: int, outputs: int) -> nn.Module:
            return nn.Sequential(nn.Linear(inputs, WIDTH), nn.ELU(), nn.Linear(WIDTH, outputs))

        self.encoder, self.decoder = mlp(3, WIDTH), mlp(FEATURE, 3)
        self.inputs, self.cell = mlp(STOCHASTIC + 1, WIDTH), nn.GRUCell(WIDTH, WIDTH)
        self.outcome, self.horizon = mlp(FEATURE + 1, 2), 12
        self.prior, self.posterior = mlp(WIDTH, 2 * STOCHASTIC), mlp(2 * WIDTH, 2 * STOCHASTIC)
        self.actor, self.critic, self.target = mlp(FEATURE, 2), mlp(FEATURE, 1), mlp(FEATURE, 1)

    def recur(self, feature_NF: Tensor, action_N1: Tensor) -> Tensor:
        """The next recurrent state."""
        state, stochastic_NS = feature_NF.split((WIDTH, STOCHASTIC), -1)
        inputs = self.inputs(torch.cat((stochastic_NS, action_N1), -1))
        return torch.as_tensor(self.cell(inputs, state))

    def observe(self, seen_BT3: Tensor, action_BT1: Tensor, first_BT: Tensor) -> tuple[Tensor, ...]:
        """Features, prior, posterior, observations and outcomes of recorded sequences."""
        feature_BF = seen_BT3.new_zeros(len(seen_BT3), FEATURE)
        keep_BT1 = 1 - first_BT.unsqueeze(-1)
        before_BT1 = keep_BT1 * functional.pad(action_BT1, (0, 0, 1, -1))
        features, posteriors = [], []
        for step, embedded in enumerate(self.encoder(seen_BT3).unbind(1)):
            state = self.recur(feature_BF * keep_BT1[:, step], before_BT1[:, step])
            posteriors.append(self.posterior(torch.cat((state, embedded), -1)))
            feature_BF = torch.cat((state, normal(posteriors[-1]).rsample()), -1)
            features.append(feature_BF)
        feature_BTF = torch.stack(features, 1)
        prior, posterior = self.prior(feature_BTF[..., :WIDTH]), torch.stack(posteriors, 1)
        outcome_BT2 = self.outcome(torch.cat((feature_BTF, action_BT1), -1))
        return feature_BTF, prior, posterior, self.decoder(feature_BTF), outcome_BT2

    def imagine(self, feature_NF: Tensor) -> tuple[Tensor, ...]:
        """Features and values of the target, H + 1, outcomes and the actor's deviations, H."""
        features, actions, policies = [feature_NF], [], []
        for _ in range(self.horizon):
            policies.append(normal(self.actor(features[-1].detach())))
            actions.append(policies[-1].rsample().tanh())
            state = self.recur(features[-1], actions[-1])
            features.append(torch.cat((state, normal(self.prior(state)).rsample()), -1))
        feature_HNF = torch.stack(features)
        deviations = torch.cat([policy.stddev for policy in policies], -1).T
        outcome_HN2 = self.outcome(torch.cat((feature_HNF[:-1], torch.stack(actions)), -1))
        return feature_HNF, self.target(feature_HNF)[..., 0], outcome_HN2, deviations

    def act(self, seen_B3: Tensor, feature_BF: Tensor, action_B1: Tensor) -> tuple[Tensor, Tensor]:
        """The next feature, with the mean of the stochastic state, and what the actor gives."""
        state = self.recur(feature_BF, action_B1)
        posterior = normal(self.posterior(torch.cat((state, self.encoder(seen_B3)), -1)))
        feature_BF = torch.cat((state, posterior.mean), -1)
        return feature_BF, self.actor(feature_BF)


def world_loss(forward: Forward, batch: Batch, computed: Tensors) -> Tensor:
    """Negative evidence bound; most of the divergence moves the prior."""
    known = forward.method("observe", batch["observation"], batch["action"], batch["first"])
    computed["feature"], prior, posterior, seen_BT3, outcome_BT2 = known
    reward_BT, going_on_BT = outcome_BT2.unbind(-1)
    errors = 3 * functional.mse_loss(seen_BT3, batch["observation"])
    errors = errors + functional.mse_loss(reward_BT, REWARD_SCALE * batch["reward"])
    ends = functional.binary_cross_entropy_with_logits(going_on_BT, 1 - batch["terminated"])
    nats = 0.8 * divergence(posterior.detach(), prior) + 0.2 * divergence(posterior, prior.detach())
    return SHARPNESS * errors + ends + nats


def divergence(posterior: Tensor, prior: Tensor) -> Tensor:
    """How many nats the posterior adds to the prior, at least the free ones, ``[]``."""
    return kl_divergence(normal(posterior), normal(prior)).sum(-1).mean().clamp(min=FREE_NATS)


def mixed_returns(reward_HN: Tensor, discount_HN: Tensor, value_HN: Tensor) -> Tensor:
    """Returns of all lengths, mixed by lambda; there is a value more."""
    returns, following_N = [], value_HN[-1]
    for step in reversed(range(len(reward_HN))):
        mixed_N = torch.lerp(value_HN[step + 1], following_N, LAMBDA)
        following_N = reward_HN[step] + discount_HN[step] * mixed_N
        returns.append(following_N)
    return torch.stack(returns[::-1])


def actor_loss(forward: Forward, _batch: Batch, computed: Tensors) -> Tensor:
    """The actor maximises what it imagines, and its entropy."""
    imagined = forward.method("imagine", computed["feature"].flatten(0, 1))
    feature_HNF, value_HN, outcome_HN2, deviation_HN = imagined
    reward_HN, going_on_HN = outcome_HN2.unbind(-1)
    discount_HN = DISCOUNT * going_on_HN.sigmoid()
    returns_HN = mixed_returns(reward_HN, discount_HN, value_HN)
    weight_HN = torch.cat((torch.ones_like(discount_HN[:1]), discount_HN[:-1])).cumprod(0).detach()
    computed.update(imagined=feature_HNF[:-1], returns=returns_HN, weight=weight_HN)
    return -torch.mean(weight_HN * (returns_HN + ENTROPY * deviation_HN.log()))


def critic_loss(forward: Forward, _batch: Batch, computed: Tensors) -> Tensor:
    """Squared error against the imagined returns."""
    error = forward.method("critic", computed["imagined"])[..., 0] - computed["returns"]
    return torch.mean(computed["weight"] * error.square())


def act(model: Forward, seen: Tensor, generator: torch.Generator | None, state: Tensors) -> Tensor:
    """Actions ``[B, 1]``; without a generator mean ones."""
    if not state:
        state["feature"], state["action"] = seen.new_zeros(len(seen), FEATURE), 0 * seen[:, :1]
    state["feature"], raw = model.method("act", seen, *state.values())
    policy, noise = normal(raw), torch.zeros_like(state["action"])
    if generator is not None:
        noise.normal_(generator=generator)
    state["action"] = torch.tanh(policy.mean + policy.stddev * noise)
    return state["action"]


def pendulums(count: int = 1) -> VectorEnv:
    """So many of Pendulum-v1, observations and actions from -1 to 1."""
    plain = gymnasium.make_vec("Pendulum-v1", num_envs=count, vectorization_mode="sync")
    return RescaleAction(RescaleObservation(plain, -1, 1), -1, 1)


def returns(model: Forward, device: str, seed: int, episodes: int) -> np.ndarray:
    """Returns of the mean action from fixed starts, float64 ``[episodes]``."""
    environments, total_B = pendulums(episodes), np.zeros(episodes)
    seen_B3, state = environments.reset(seed=seed)[0], dict[str, Tensor]()
    with torch.no_grad():
        for _ in range(EPISODE):
            action_B1 = act(model, torch.as_tensor(seen_B3, device=device), None, state)
            seen_B3, reward_B, *_ = environments.step(action_B1.cpu().numpy())
            total_B += reward_B
    environments.close()
    return total_B


class DreamerAgent:
    """Publishes its networks if they beat those in use from starts that training has not seen."""

    name = "dreamer"
    contract_version = contract.CONTRACT_VERSION

    def schedule(self) -> contract.Schedule:
        """Every day; the operator's setting wins."""
        return contract.Schedule.parse("every 24h")

    def settings_model(self) -> None:
        """None."""

    def collect(self, context: RunContext) -> Iterator[Transition]:
        """Nothing: each round collects with the newest weights."""
        del context
        return iter(())

    def build_job(self, context: RunContext, transitions: RecordedTransitions) -> OnPolicyJob:
        """New networks; they begin to learn from what earlier runs have recorded."""
        torch.manual_seed(context.seed)
        warm_up = 0 if len(transitions) else 5 * EPISODE
        options = RoundOptions(
            steps=EPISODE, warm_up_steps=warm_up, updates=100, batch_size=8, sequence_length=16
        )

        adam = partial(torch.optim.Adam, lr=1e-3, fused=True)

        def evaluate(forward: Forward) -> contract.Evaluation:
            mean = {"return": float(returns(forward, context.device, *CHOOSING).mean())}
            return contract.Evaluation(metrics=mean, primary="return", higher_is_better=True)

        return OnPolicyJob(
            model=Dreamer(),
            parts=[
                Part(name="world", trains=WORLD, optimizer=adam, loss=world_loss),
                Part(name="actor", trains=["actor"], optimizer=adam, loss=actor_loss),
                Part(name="critic", trains=["critic"], optimizer=adam, loss=critic_loss),
            ],
            targets=[Target(module="target", source="critic", tau=0.02)],
            batches=EnvironmentRounds(context, transitions, pendulums, act, options).batches,
            evaluate=evaluate,
            epochs=5,
            rounds_per_epoch=5,
        )

    def publish(
        self, context: RunContext, model: nn.Module, report: contract.EvaluationReport
    ) -> contract.Publication:
        """Publish *model* if its returns are higher beyond chance (two standard errors)."""
        forward = PrecisionForward(model, torch.device(context.device), Precision.FP32)
        new_B = torch.from_numpy(returns(forward, context.device, *DECIDING))
        file = context.agent_folder / "published" / "dreamer.pt"
        try:
            gain_B = new_B - read_tensors(file)["returns"]
        except TensorFileError:
            better, told = True, "no networks are in use"
        else:
            gain, error = float(gain_B.mean()), float(gain_B.std()) / len(gain_B) ** 0.5
            better, told = gain > 2 * error, f"{gain:+.1f} ± {error:.1f} to those in use"
        if better:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(file, {"model": model.state_dict(), "returns": new_B})
        mean = float(new_B.mean())
        reason = f"mean of {len(new_B)} returns {mean:.1f} after {report.steps} steps, {told}"
        return contract.Publication(published=better, reason=reason, metrics={"return": mean})
