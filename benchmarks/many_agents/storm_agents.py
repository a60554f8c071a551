"""The agents of the storm: each learns a sine for a moment, and one of them all the time.

A plugin of its own: `benchmarks.many_agents.storm_daemon` copies it into a folder with an
installer's metadata. It imports torch only to train, so that a probe is cheap.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from torch import Tensor, nn

STEADY = "steady"
ROWS, STEPS, PAUSE_SECONDS = 64, 60, 0.01
FOREVER = 1_000_000  # epochs


class StormAgent:
    """Waits for the schedule that the storm gives it; the steady one trains at once."""

    contract_version = CONTRACT_VERSION

    def __init__(self, name: str) -> None:
        self.name = name

    def schedule(self) -> Schedule:
        """Once a day."""
        daily = Schedule.parse("every 1d")
        return replace(daily, catch_up="latest" if self.name == STEADY else "none")

    def settings_model(self) -> None:
        """None: the agent has no settings."""

    def collect(self, context: RunContext) -> Iterator[Transition]:
        """Yield points of a sine."""
        for index in range(ROWS):
            angle = 2 * math.pi * index / ROWS
            yield Transition(
                group=f"{context.run_id}/{index % 8}",
                observation={"angle": angle},
                action={},
                reward=math.sin(angle),
            )

    def build_job(self, context: RunContext, transitions: Iterable[Transition]) -> TrainingJob:
        """Build a small network that learns the sine."""
        import torch
        from torch.nn import functional

        rows = [(each.observation["angle"], each.reward) for each in transitions]
        x_B1 = torch.tensor([[x] for x, _ in rows], device=context.device)
        y_B1 = torch.tensor([[y] for _, y in rows], device=context.device)
        torch.manual_seed(context.seed)
        layers = torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)

        def batches(_epoch: int) -> Iterator[dict[str, Tensor]]:
            for _ in range(STEPS):
                time.sleep(PAUSE_SECONDS)
                yield {"x": x_B1, "y": y_B1}

        return TrainingJob(
            model=torch.nn.Sequential(*layers),
            optimizer=partial(torch.optim.AdamW, lr=1e-2, fused=True),
            batches=batches,
            loss=lambda forward, batch: functional.mse_loss(forward(batch["x"]), batch["y"]),
            evaluate=lambda forward: Evaluation(
                metrics={"mse": float(functional.mse_loss(forward(x_B1), y_B1))},
                primary="mse",
                higher_is_better=False,
            ),
            epochs=FOREVER if self.name == STEADY else 1,
        )

    def publish(
        self, _context: RunContext, _model: nn.Module, report: EvaluationReport
    ) -> Publication:
        """Publish nothing: the model is not used."""
        metrics = dict(report.evaluation.metrics)
        return Publication(published=False, reason="a storm", metrics=metrics)


class _Factories:
    """A factory per attribute: ``agents.agent_0007``."""

    def __getattr__(self, attribute: str) -> Callable[[], StormAgent]:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return partial(StormAgent, attribute.replace("_", "-"))


agents = _Factories()
