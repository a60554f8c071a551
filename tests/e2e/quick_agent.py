"""A small agent with real data and real training, whose runs take as long as a test asks.

Copied by a fixture into a folder of its own with the metadata an installer would write.
"""

import math
import time
from collections.abc import Iterator

import torch
from pydantic import BaseModel, ConfigDict

from infrastructure.agent_contract import (
    CONTRACT_VERSION,
    Evaluation,
    EvaluationReport,
    Publication,
    RunContext,
    Schedule,
    TrainingJob,
    Transition,
)

WIDTH = 64
ENOUGH = "enough"  # a file in the agent's folder: the next attempts train for one epoch


class QuickSettings(BaseModel):
    """How long a run lasts, and how much of a core it leaves to others."""

    model_config = ConfigDict(extra="forbid")
    epochs: int = 5
    batches_per_epoch: int = 20
    pause_seconds: float = 0.0  # before each batch


class QuickAgent:
    """Learns a sine from samples of it."""

    name = "quick"
    contract_version = CONTRACT_VERSION

    def schedule(self) -> Schedule:
        return Schedule.parse("every 1d")

    def settings_model(self) -> type[BaseModel]:
        return QuickSettings

    def collect(self, context: RunContext) -> Iterator[Transition]:
        for index in range(64):
            angle = 2 * math.pi * index / 64
            yield Transition(
                group=f"{context.run_id}/{index % 8}",
                observation={"angle": angle},
                action={},
                reward=math.sin(angle),
            )
            context.report_progress(index + 1, 64, unit="samples")

    def build_job(self, context: RunContext, transitions) -> TrainingJob:
        settings = context.settings or QuickSettings()
        rows = sorted({(t.observation["angle"], t.reward) for t in transitions})
        inputs = torch.tensor([[angle] for angle, _ in rows], dtype=torch.float32)
        outputs = torch.tensor([[value] for _, value in rows], dtype=torch.float32)
        held_out = torch.arange(len(rows)) % 4 == 0

        torch.manual_seed(context.seed)
        model = torch.nn.Sequential(
            torch.nn.Linear(1, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1)
        )

        def batches(epoch: int):
            generator = torch.Generator().manual_seed(epoch)
            for _ in range(settings.batches_per_epoch):
                time.sleep(settings.pause_seconds)
                chosen = torch.randint(len(rows), (32,), generator=generator)
                yield {"inputs": inputs[chosen], "outputs": outputs[chosen]}

        def evaluate(forward) -> Evaluation:
            error = forward(inputs[held_out]) - outputs[held_out]
            return Evaluation(
                metrics={"mse": float(error.square().mean())}, primary="mse", higher_is_better=False
            )

        return TrainingJob(
            model=model,
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3, fused=True),
            batches=batches,
            loss=lambda forward, batch: torch.nn.functional.mse_loss(
                forward(batch["inputs"]), batch["outputs"]
            ),
            evaluate=evaluate,
            epochs=1 if (context.agent_folder / ENOUGH).exists() else settings.epochs,
        )

    def publish(self, context: RunContext, model, report: EvaluationReport) -> Publication:
        metrics = dict(report.evaluation.metrics)
        better = metrics["mse"] < 0.5  # the variance of a sine: what guessing its mean costs
        if better:
            torch.save(model.state_dict(), context.agent_folder / "published.pt")
        return Publication(published=better, reason="against the mean", metrics=metrics)
