"""Agents whose models have one shape; their settings say what goes wrong."""

import random
import sys

import torch
from pydantic import BaseModel
from torch import nn

from infrastructure.agent_contract import (
    Evaluation,
    Publication,
    Schedule,
    TrainingJob,
    Transition,
)


class Knobs(BaseModel):
    epochs: int = 2
    width: int = 8
    fault: str = ""


class Plain:
    contract_version = 1

    def schedule(self):
        return Schedule(every_seconds=3600)

    def settings_model(self):
        return Knobs

    def collect(self, context):
        if context.settings.fault == "exits":
            sys.exit(3)
        for number in range(16):
            yield Transition(
                group=f"g{number}", observation={"x": torch.rand(()).item()}, action={}
            )

    def build_job(self, context, transitions):
        knobs = context.settings
        data = torch.tensor([[each.observation["x"]] for each in transitions])
        model = nn.Sequential(nn.Linear(1, knobs.width), nn.SiLU(), nn.Linear(knobs.width, 1))

        def batches(epoch):
            for number in range(20):
                if knobs.fault == "raises" and (epoch, number) == (1, 5):
                    raise RuntimeError("the data is gone")
                yield {"x": data * random.random() + torch.rand(len(data), 1)}

        def loss(forward, batch):
            return nn.functional.mse_loss(forward(batch["x"]), 2 * batch["x"])

        def evaluate(forward):
            mse = float(nn.functional.mse_loss(forward(data), 2 * data))
            return Evaluation(metrics={"mse": mse}, primary="mse", higher_is_better=False)

        return TrainingJob(
            model=model,
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
            batches=batches,
            loss=loss,
            evaluate=evaluate,
            epochs=knobs.epochs,
        )

    def publish(self, context, model, report):
        torch.save(model.state_dict(), context.agent_folder / "model.pt")
        return Publication(published=True, reason="first", metrics=report.evaluation.metrics)


class A(Plain):
    name = "a"


class B(Plain):
    name = "b"


class C(Plain):
    name = "c"
