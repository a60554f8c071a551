"""An agent that writes down each of its steps, so that two at once would be seen.

Copied into a folder of its own with the metadata that an installer would write.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from pydantic import BaseModel

from infrastructure.agent_contract import (
    CONTRACT_VERSION,
    Evaluation,
    EvaluationReport,
    Forward,
    Publication,
    RunContext,
    Schedule,
    TrainingJob,
    Transition,
)
from infrastructure.agent_contract.training_job import Batch


class LedgerSettings(BaseModel):
    """Where the steps are written down, and a file whose existence ends each training."""

    ledger: Path
    enough: Path


class LedgerAgent:
    """Learns that y is 2x, slowly."""

    name = "ledger"
    contract_version = CONTRACT_VERSION

    def schedule(self) -> Schedule:
        """Never by itself."""
        return Schedule(every_seconds=86400.0, catch_up="none")

    def settings_model(self) -> type[BaseModel]:
        """See `LedgerSettings`."""
        return LedgerSettings

    def collect(self, context: RunContext) -> Iterator[Transition]:
        """One transition."""
        del context
        yield Transition(group="g", observation={"x": 1.0}, action={})

    def build_job(self, context: RunContext, transitions: object) -> TrainingJob:
        """Epochs of a few steps of 20 ms until there are enough."""
        del transitions
        settings = LedgerSettings.model_validate(context.settings)
        inputs = torch.linspace(-1.0, 1.0, 16)[:, None]

        def batches(epoch: int) -> Iterator[dict[str, torch.Tensor]]:
            del epoch
            for _ in range(1 if settings.enough.exists() else 10):
                line = f"{context.run_id} {context.attempt} {time.monotonic():.4f}\n"
                ledger = os.open(settings.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                os.write(ledger, line.encode())
                os.close(ledger)
                if not settings.enough.exists():
                    time.sleep(0.02)
                yield {"inputs": inputs, "outputs": 2 * inputs}

        def loss(forward: Forward, batch: Batch) -> torch.Tensor:
            return torch.nn.functional.mse_loss(forward(batch["inputs"]), batch["outputs"])

        def evaluate(forward: Forward) -> Evaluation:
            error = float(loss(forward, {"inputs": inputs, "outputs": 2 * inputs}))
            return Evaluation(metrics={"mse": error}, primary="mse", higher_is_better=False)

        return TrainingJob(
            model=torch.nn.Linear(1, 1),
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
            batches=batches,
            loss=loss,
            evaluate=evaluate,
            epochs=300,
        )

    def publish(self, context: RunContext, model: object, report: EvaluationReport) -> Publication:
        """Publish nothing."""
        del context, model, report
        return Publication(published=False, reason="never", metrics={})
