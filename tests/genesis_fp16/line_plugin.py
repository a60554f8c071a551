"""Source of a plugin whose job has a network of two layers, for tests that install an agent."""

_SOURCE = """
import time
import torch
from torch import nn
from infrastructure.agent_contract import *
from infrastructure.agent_contract.agent import InsufficientDataError


class LineAgent:
    name = "line"
    contract_version = 1

    def schedule(self):
        return Schedule(every_seconds=3600)

    def settings_model(self):
        return None

    def collect(self, context):
        for number in range(6):
            yield Transition(group=f"g{number}", observation={"x": float(number)}, action={})
        LATER

    def build_job(self, context, transitions):
        if len(transitions) < NEEDED:
            raise InsufficientDataError("transitions", len(transitions), NEEDED)
        x = torch.tensor([[t.observation["x"]] for t in transitions])

        def loss(forward, batch):
            return torch.nn.functional.mse_loss(forward(batch["x"]), 2 * batch["x"])

        return TrainingJob(
            model=nn.Sequential(nn.Linear(1, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1)),
            optimizer=lambda parameters: torch.optim.AdamW(parameters, fused=True),
            batches=lambda epoch: [{"x": x + epoch}] * 4,
            loss=loss,
            evaluate=lambda forward: None,
            epochs=1,
        )

    def publish(self, context, model, report):
        raise AssertionError("nothing is published")
"""
FACTORY = "LineAgent"


def line_plugin(*, needed: int = 4, width: int = 8, later: str = "pass") -> str:
    """The module's source.

    Args:
        needed: Transitions without which there is no job.
        width: Width of the network.
        later: Statement that `collect` executes after six transitions.
    """
    source = _SOURCE.replace("NEEDED", str(needed)).replace("WIDTH", str(width))
    return source.replace("LATER", later)
