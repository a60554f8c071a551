"""A job of five parts that acts in pendulums, for the tests of parts and for the torture.

A world model trains the trunk that two critics read; an actor and a temperature step for every
second batch. BatchNorm, dropout, schedules, a Polyak and a hard target: a checkpoint holds it all.
Copied beside the agents that train it.
"""

import copy
import hashlib
import time
from collections.abc import Callable, MutableMapping
from functools import partial

import gymnasium
import torch
from torch import Tensor, nn

from infrastructure.agent_contract import (
    Evaluation,
    EvaluationReport,
    Part,
    RunContext,
    Target,
)
from infrastructure.agent_contract.on_policy_job import OnPolicyJob
from infrastructure.environments import EnvironmentRounds, RoundOptions
from infrastructure.training.checkpoints.checkpoint import read_checkpoint

PARTS = ("world-model", "critic-a", "critic-b", "actor", "temperature")
ROUND_STEPS = 6
LAST_BATCH_SECONDS = 0.2  # longer than the interval of checkpoints, so that one has the last state

Computed = MutableMapping[str, Tensor]
Reach = Callable[[str, int], None]


class Networks(nn.Module):
    """The networks; a state has 3 numbers, an action and a value 1, a code 16."""

    def __init__(self) -> None:
        super().__init__()

        def mlp(inputs: int, outputs: int) -> nn.Module:
            hidden = (nn.Linear(inputs, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1))
            return nn.Sequential(*hidden, nn.Linear(16, outputs))

        self.trunk, self.decoder = mlp(4, 16), mlp(16, 4)
        self.critic_a, self.critic_b = mlp(16, 1), mlp(16, 1)
        self.target_a, self.target_b = copy.deepcopy(self.critic_a), copy.deepcopy(self.critic_b)
        self.actor = mlp(3, 1)
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def encode(self, state: Tensor, action: Tensor) -> Tensor:
        return self.trunk(torch.cat((state, action), dim=1))

    def run(self, name: str, inputs: Tensor) -> Tensor:
        return self.get_submodule(name)(inputs)

    def temperature(self) -> Tensor:
        return self.log_temperature.exp()


def _world_model_loss(reach: Reach, forward, batch, computed: Computed) -> Tensor:
    reach("batch", int(batch["number"]))
    computed["code"] = code = forward.method("encode", batch["observation"], batch["action"])
    outcome = torch.cat((batch["next_observation"], batch["reward"].unsqueeze(1)), dim=1)
    return nn.functional.mse_loss(forward.method("run", "decoder", code), outcome)


def _critic_loss(name: str, reach: Reach, forward, batch, computed: Computed) -> Tensor:
    reach(f"critic_{name}", int(batch["number"]))
    with torch.no_grad():
        action = forward.method("run", "actor", batch["next_observation"]).tanh()
        code = forward.method("encode", batch["next_observation"], action)
        value = batch["reward"].unsqueeze(1) + forward.method("run", f"target_{name}", code)
    return nn.functional.mse_loss(
        forward.method("run", f"critic_{name}", computed["code"]), value.clamp(-50, 50)
    )


def _actor_loss(reach: Reach, forward, batch, computed: Computed) -> Tensor:
    reach("actor", int(batch["number"]))
    action = forward.method("run", "actor", batch["observation"]).tanh()
    computed["size"] = action.square().mean()
    code = forward.method("encode", batch["observation"], action)
    cost = forward.method("temperature").detach() * action.square()
    return (cost - forward.method("run", "critic_a", code)).mean()


def _temperature_loss(reach: Reach, forward, batch, computed: Computed) -> Tensor:
    reach("temperature", int(batch["number"]))
    return forward.method("temperature") * (0.3 - computed["size"])


def _adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3, fused=True)


def _pendulums() -> gymnasium.vector.VectorEnv:
    return gymnasium.make_vec("Pendulum-v1", num_envs=2, vectorization_mode="sync")


def parts_job(
    context: RunContext, *, epochs: int, rounds: int, batches: int, reach: Reach
) -> OnPolicyJob:
    """The job; so many *rounds* in an epoch, so many *batches* in a round.

    The data of earlier runs are not used, so that runs with one seed can be compared.

    Args:
        reach: Called with a place and a count: before each ``round``, each step of the environments
            (``act``), each ``batch``, the steps of its other parts, and evaluations.
    """
    torch.manual_seed(context.seed)
    acted, last = 0, epochs * rounds * batches - 1

    def reach_batch(place: str, number: int) -> None:
        reach(place, number)
        if place == "batch" and number == last:
            time.sleep(LAST_BATCH_SECONDS)

    def act(forward, state: Tensor, generator: torch.Generator, _memory: object) -> Tensor:
        nonlocal acted
        reach("act", acted)
        acted += 1
        action = forward.method("run", "actor", state)
        return 2 * torch.tanh(action + torch.randn(action.shape, generator=generator))

    options = RoundOptions(
        steps=ROUND_STEPS,
        updates=batches,
        batch_size=32,
        warm_up_steps=20,
        rounds_per_reset=3,
        capacity=2000,
    )
    source = EnvironmentRounds(context, (), _pendulums, act, options)

    def generate(round_: int, roles):
        nonlocal acted
        acted = round_ * ROUND_STEPS
        reach("round", round_)
        first = round_ * batches
        return [
            {**batch, "number": torch.tensor([first + index])}
            for index, batch in enumerate(source.batches(round_, roles))
        ]

    def evaluate(forward) -> Evaluation:
        reach("evaluate", 0)
        size = forward.method("temperature").item()
        return Evaluation(metrics={"size": size}, primary="size", higher_is_better=False)

    def part(name: str, trains: list[str], loss, **more) -> Part:
        return Part(name=name, trains=trains, loss=loss, optimizer=_adam, **more)

    decayed = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.999)
    return OnPolicyJob(
        model=Networks(),
        parts=[
            part("world-model", ["trunk", "decoder"], partial(_world_model_loss, reach_batch)),
            part(
                "critic-a", ["critic_a"], partial(_critic_loss, "a", reach_batch), scheduler=decayed
            ),
            part(
                "critic-b", ["critic_b"], partial(_critic_loss, "b", reach_batch), max_grad_norm=1.0
            ),
            part(
                "actor", ["actor"], partial(_actor_loss, reach_batch), every=2, loss_scale=2.0**24
            ),
            part(
                "temperature", ["log_temperature"], partial(_temperature_loss, reach_batch), every=2
            ),
        ],
        targets=[
            Target(module="target_a", source="critic_a", tau=0.05),
            Target(module="target_b", source="critic_b", tau=1.0, every=7),
        ],
        batches=generate,
        evaluate=evaluate,
        epochs=epochs,
        rounds_per_epoch=rounds,
    )


def trained(context: RunContext, model: nn.Module, report: EvaluationReport) -> dict[str, object]:
    """Hashes of the published *model* and of the newest checkpoint: all that the run has made."""
    newest = max((context.run_folder / "checkpoints").glob("step-*.pt"))
    return {
        "sha256": _hash(model.state_dict()),
        "checkpoint": newest.name,
        "state": _hash(read_checkpoint(newest, torch.device("cpu"))),
        "steps": report.steps,
    }


def _hash(content: object) -> str:
    digest = hashlib.sha256()

    def add(item: object) -> None:
        if isinstance(item, Tensor):
            item = item.detach().cpu().numpy()
            digest.update(f"{item.dtype}{item.shape}".encode() + item.tobytes())
        elif isinstance(item, dict):
            for key, value in item.items():
                digest.update(f"{key!r}:".encode())
                add(value)
        elif isinstance(item, list | tuple):
            for value in item:
                add(value)
        else:
            digest.update(f"{item!r};".encode())

    add(content)
    return digest.hexdigest()
