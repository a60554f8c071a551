"""The quick agent's samples for a job of three parts: a critic, an actor, and a temperature.

Copied beside the quick agent by a fixture. It leaves a hash of its weights in the run's folder.
"""

import copy
import hashlib
import json
from collections.abc import MutableMapping

import torch
from quick_agent import QuickAgent
from torch import Tensor, nn

from infrastructure.agent_contract import (
    Evaluation,
    EvaluationReport,
    Part,
    Publication,
    RunContext,
    Target,
    TrainingJob,
)

WEIGHTS = "weights.json"


def _network(inputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, 1))


class ActorCritic(nn.Module):
    """A critic of angle and action ``[B, 2]``, an actor that sees the angle ``[B, 1]``."""

    def __init__(self) -> None:
        super().__init__()
        self.critic, self.actor = _network(2), _network(1)
        self.target = copy.deepcopy(self.critic)
        self.log_alpha = nn.Parameter(torch.tensor(0.0))

    def act(self, angle: Tensor) -> Tensor:
        return torch.tanh(self.actor(angle)).to(angle.dtype)

    def value(self, angle: Tensor) -> Tensor:
        return self.critic(torch.cat((angle, self.act(angle)), dim=1))

    def target_value(self, angle: Tensor) -> Tensor:
        return self.target(torch.cat((angle, self.act(angle)), dim=1))

    def temperature(self) -> Tensor:
        return self.log_alpha.exp()


def _critic_loss(forward, batch, _computed: MutableMapping[str, Tensor]) -> Tensor:
    with torch.no_grad():
        value = batch["outputs"] + 0.5 * forward.method("target_value", batch["inputs"])
    return (forward.method("value", batch["inputs"]) - value).square().mean()


def _actor_loss(forward, batch, computed: MutableMapping[str, Tensor]) -> Tensor:
    action = forward.method("act", batch["inputs"])
    computed["size"] = action.square().mean()
    cost = forward.method("temperature").detach() * action.square().mean()
    return cost - forward.method("value", batch["inputs"]).mean()


def _temperature_loss(forward, _batch, computed: MutableMapping[str, Tensor]) -> Tensor:
    return forward.method("temperature") * (0.3 - computed["size"])


def _adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3, fused=True)


class PartsAgent(QuickAgent):
    """Trains an actor-critic; its runs have one seed, so that they can be compared."""

    name = "parts"

    def build_job(self, context: RunContext, transitions) -> TrainingJob:
        quick = super().build_job(context, transitions)
        torch.manual_seed(0)
        model = ActorCritic()
        every = {"optimizer": _adam, "every": 2}

        def evaluate(forward) -> Evaluation:
            size = forward.method("temperature").item()
            return Evaluation(metrics={"size": size}, primary="size", higher_is_better=False)

        return TrainingJob(
            model=model,
            parts=[
                Part(name="critic", trains=["critic"], optimizer=_adam, loss=_critic_loss),
                Part(name="actor", trains=["actor"], loss=_actor_loss, loss_scale=2.0**20, **every),
                Part(name="temperature", trains=["log_alpha"], loss=_temperature_loss, **every),
            ],
            targets=[Target(module="target", source="critic", tau=0.05)],
            batches=quick.batches,
            evaluate=evaluate,
            epochs=quick.epochs,
        )

    def publish(self, context: RunContext, model, report: EvaluationReport) -> Publication:
        digest = hashlib.sha256()
        for name, weights in sorted(model.state_dict().items()):
            digest.update(name.encode() + weights.cpu().numpy().tobytes())
        found = {"sha256": digest.hexdigest(), "steps": report.steps}
        (context.run_folder / WEIGHTS).write_text(json.dumps(found))
        return Publication(published=False, reason="a test", metrics=report.evaluation.metrics)
