"""The agent of the drill: it learns a sine in FP16 until the drill stops it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator

import torch
from torch.nn import functional

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

SAMPLES, EPOCHS, BATCHES = 64, 1_000_000, 500
PAUSE_SECONDS = 0.02  # before each batch: the machine may have other work


class DrillAgent:
    """Agent whose run does not end by itself."""

    name = "drill"
    contract_version = CONTRACT_VERSION

    def schedule(self) -> Schedule:
        """Due at once, and again every day."""
        return Schedule.parse("every 1d")

    def settings_model(self) -> None:
        """None: the agent has no settings."""

    def collect(self, context: RunContext) -> Iterator[Transition]:
        """Yield points of a sine."""
        for index in range(SAMPLES):
            angle = 2 * math.pi * index / SAMPLES
            yield Transition(
                group=f"{context.run_id}/{index % 8}",
                observation={"angle": angle},
                action={},
                reward=math.sin(angle),
            )

    def build_job(self, context: RunContext, buffer: Iterable[Transition]) -> TrainingJob:
        """Build a small network that learns the sine."""
        rows = sorted(
            {(transition.observation["angle"], transition.reward) for transition in buffer}
        )
        # The loop moves batches to the device; the data of an evaluation is the agent's.
        angles, values = zip(*rows, strict=True)
        inputs_B1 = torch.tensor(angles, device=context.device)[:, None]
        outputs_B1 = torch.tensor(values, device=context.device)[:, None]
        torch.manual_seed(context.seed)
        model = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
        batch = {"inputs": inputs_B1, "outputs": outputs_B1}

        def batches(_epoch: int) -> Iterator[dict[str, torch.Tensor]]:
            for _ in range(BATCHES):
                time.sleep(PAUSE_SECONDS)
                yield batch

        return TrainingJob(
            model=model,
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
            batches=batches,
            loss=lambda forward, batch: functional.mse_loss(
                forward(batch["inputs"]), batch["outputs"]
            ),
            evaluate=lambda forward: Evaluation(
                metrics={"mse": float(functional.mse_loss(forward(inputs_B1), outputs_B1))},
                primary="mse",
                higher_is_better=False,
            ),
            epochs=EPOCHS,
        )

    def publish(
        self, _context: RunContext, _model: torch.nn.Module, report: EvaluationReport
    ) -> Publication:
        """Publish nothing: the model is not used."""
        metrics = dict(report.evaluation.metrics)
        return Publication(published=False, reason="a drill", metrics=metrics)
