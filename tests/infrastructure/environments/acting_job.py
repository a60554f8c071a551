"""A small deterministic actor-critic with parts and a target that acts in an environment."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import structlog
import torch
from torch import Tensor, nn

from infrastructure.agent_contract import Evaluation, Part, RunContext, Target, Transition
from infrastructure.agent_contract.on_policy_job import OnPolicyJob
from infrastructure.agent_contract.run_context import Budget
from infrastructure.environments import EnvironmentRounds, RoundOptions
from infrastructure.trajectories import ReplayBuffer

STEPS, UPDATES, ROUNDS = 12, 3, 8
OPTIONS = {"steps": STEPS, "updates": UPDATES, "batch_size": 8, "warm_up_steps": 20}


def pendulums(
    count: int = 1, mode: str = "NextStep", limit: int = 30
) -> gymnasium.vector.VectorEnv:
    return gymnasium.make_vec(
        "Pendulum-v1",
        num_envs=count,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": mode},
        max_episode_steps=limit,
    )


def mlp(inputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, 1))


class ActorCritic(nn.Module):
    """Keeps the type that its actor has computed in."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = mlp(3), mlp(4)
        self.target = copy.deepcopy(self.critic)
        self.types: list[torch.dtype] = []

    def act(self, state: Tensor) -> Tensor:
        raw = self.actor(state)
        self.types.append(raw.dtype)
        return 2 * torch.tanh(raw)

    def value(self, state: Tensor, action: Tensor) -> Tensor:
        return self.critic(torch.cat((state, action.to(state.dtype)), 1))

    def target_value(self, state: Tensor) -> Tensor:
        action = self.act(state).to(state.dtype)
        return self.target(torch.cat((state, action), 1))


def critic_loss(forward: Any, batch: Any, _computed: Any) -> Tensor:
    with torch.no_grad():
        following = forward.method("target_value", batch["next_observation"])[:, 0]
        value = batch["reward"] + 0.9 * (1 - batch["terminated"]) * following
    predicted = forward.method("value", batch["observation"], batch["action"])[:, 0]
    return (predicted - value).square().mean()


def actor_loss(forward: Any, batch: Any, _computed: Any) -> Tensor:
    action = forward.method("act", batch["observation"])
    return -forward.method("value", batch["observation"], action).mean()


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-2, fused=True)


PARTS = (
    Part(name="critic", trains=["critic"], optimizer=adam, loss=critic_loss),
    Part(name="actor", trains=["actor"], optimizer=adam, loss=actor_loss, every=2),
)
TARGETS = (Target(module="target", source="critic", tau=0.05),)


def act(forward: Any, observations: Tensor, generator: torch.Generator, _state: Any) -> Tensor:
    action = forward.method("act", observations)
    return action + 0.1 * torch.randn(action.shape, generator=generator)


class Drifting(gymnasium.ActionWrapper):
    """Adds what no seed decides."""

    added = 0.0

    def action(self, action: Any) -> Any:
        Drifting.added = (Drifting.added + 0.0137) % 1.0
        return action + np.float32(Drifting.added)


def drifting() -> Any:
    return gymnasium.vector.SyncVectorEnv([lambda: Drifting(gymnasium.make("Pendulum-v1"))])


class Warnings:
    """A logger that keeps its warnings."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **fields: object) -> None:
        """Ignored."""

    def warning(self, event: str, **fields: object) -> None:
        self.told.append((event, fields))


def make_context(folder: Path, **changes: Any) -> RunContext:
    given: dict[str, Any] = {
        "run_id": "run-1",
        "attempt": 1,
        "agent": "acting",
        "device": "cpu",
        "seed": 5,
        "agent_folder": folder / "agent",
        "run_folder": folder / "run",
        "budget": Budget(seconds=60, transitions=1000),
        "settings": None,
        "logger": structlog.get_logger(),
        "report_progress": lambda *_, **__: None,
    }
    return RunContext(**given | changes)


def make_job(
    folder: Path,
    make_environments: Callable[[], Any] = pendulums,
    *,
    policy: Any = act,
    earlier: Any = (),
    context: dict[str, Any] | None = None,
    job: dict[str, Any] | None = None,
    **options: Any,
) -> OnPolicyJob:
    torch.manual_seed(0)
    rounds = EnvironmentRounds(
        make_context(folder, **context or {}),
        earlier,
        make_environments,
        policy,
        RoundOptions(**OPTIONS | options),
    )

    def evaluate(forward: Any) -> Evaluation:
        value = forward.method("act", torch.ones(1, 3)).item()
        return Evaluation(metrics={"action": value}, primary="action", higher_is_better=True)

    given: dict[str, Any] = {
        "model": ActorCritic(),
        "parts": PARTS,
        "targets": TARGETS,
        "batches": rounds.batches,
        "evaluate": evaluate,
        "epochs": 2,
        "rounds_per_epoch": ROUNDS // 2,
    }
    return OnPolicyJob(**given | (job or {}))


def recorded(folder: Path) -> list[Transition]:
    return list(ReplayBuffer(folder / "agent" / "replay").read())
