"""Agents with injected faults, and healthy ones, which the guard must tell apart.

A plugin of its own: `benchmarks.guard.daemon` copies it into a folder with an installer's metadata.
Every agent trains a small network on the same kind of regression.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from benchmarks.guard.faults import (
    INPUTS,
    ONSET_STEP,
    Batch,
    TwoHeads,
    faulty_network,
    insert_nan,
    network,
    overflow_at_times,
    overflow_backward,
    overflow_forward,
    round_coarsely,
    squared_error,
    tiny_loss,
    tiny_side_loss,
    unchanged,
)
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

HEALTHY_AGENTS = 20
ROWS, BATCH = 256, 32


class FaultSettings(BaseModel):
    """Length of a run; None takes the epochs of the agent's `Plan`. Each batch waits the pause."""

    model_config = ConfigDict(extra="forbid")
    epochs: int | None = None
    batches_per_epoch: int = 100
    pause_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one agent trains.

    Attributes:
        expected: Expected trigger of the guard; empty for a healthy agent.
        onset: Step at which its fault begins.
        model: Builds the model; the generator is seeded before.
        loss, accumulate: See `TrainingJob`.
        inputs: Maps a batch's inputs and the step to the model's inputs.
        epsilon: Epsilon of Adam; tiny if tiny gradients must have an effect.
        output: Output that the held-out metric measures.
        epochs: Epochs of a run.
    """

    model: Callable[[], nn.Module]
    expected: str = ""
    onset: int = 0
    loss: Callable[[Forward, Batch], Tensor] = squared_error
    inputs: Callable[[Tensor, int], Tensor] = unchanged
    epsilon: float = 1e-8
    output: int = 0
    accumulate: int = 1
    epochs: int = 20


FAULTS: Mapping[str, Plan] = {
    "overflow-forward": Plan(
        expected="nonfinite_loss", onset=ONSET_STEP, model=partial(faulty_network, overflow_forward)
    ),
    "overflow-backward": Plan(
        expected="scale_floor", onset=ONSET_STEP, model=partial(faulty_network, overflow_backward)
    ),
    "underflow": Plan(
        expected="underflow",
        model=partial(network, 32),
        loss=partial(tiny_loss, 1e-12),
        epsilon=1e-30,
        epochs=100,  # comparisons come once a second on any machine
    ),
    "loss-drift": Plan(
        expected="loss_drift",
        onset=ONSET_STEP,
        model=partial(faulty_network, round_coarsely),
        epochs=300,
    ),
    "metric-drift": Plan(
        expected="metric_drift", model=TwoHeads, loss=tiny_side_loss, epsilon=1e-30, output=1
    ),
    "nan-in-data": Plan(
        expected="nonfinite_loss", onset=ONSET_STEP, model=partial(network, 32), inputs=insert_nan
    ),
}
STORMS: Mapping[str, Plan] = {  # need a loss scale that recovers fast: FP16_GROWTH_INTERVAL=2
    "overflow-storm": Plan(
        expected="overflow_storm",
        model=partial(faulty_network, overflow_at_times("..x"), 0),
        loss=partial(tiny_loss, 1e-6),
        epochs=100,  # statistics come once a second, too
    ),
    "overflow-sustained": Plan(
        expected="overflow_sustained",
        model=partial(faulty_network, overflow_at_times("...x"), 0),
        loss=partial(tiny_loss, 1e-6),
        epochs=100,
    ),
}
_HEALTHY = (
    Plan(model=partial(network, 16)),
    Plan(model=partial(network, 64)),
    Plan(model=partial(network, 32, nn.BatchNorm1d(32))),
    Plan(model=partial(network, 32, nn.Dropout(0.1)), accumulate=2),
    Plan(
        model=partial(network, 32, nn.LayerNorm(32)), loss=partial(tiny_loss, 1e-3), epsilon=1e-12
    ),
)
HEALTHY: Mapping[str, Plan] = {
    f"healthy-{number:02}": _HEALTHY[number % len(_HEALTHY)] for number in range(HEALTHY_AGENTS)
}
PLANS: Mapping[str, Plan] = {**FAULTS, **STORMS, **HEALTHY}


class PlannedAgent:
    """Learns the sine of the sum of its inputs, as its `Plan` says."""

    contract_version = CONTRACT_VERSION

    def __init__(self, name: str, plan: Plan) -> None:
        self.name, self._plan = name, plan

    def schedule(self) -> Schedule:
        """Once a day; the benchmark overrides it for several runs."""
        return Schedule.parse("every 1d")

    def settings_model(self) -> type[BaseModel]:
        """See `FaultSettings`."""
        return FaultSettings

    def collect(self, context: RunContext) -> Iterator[Transition]:
        """Yield random inputs with the sine of their sum as reward."""
        generator = torch.Generator().manual_seed(context.seed)
        for index, x in enumerate(torch.randn(ROWS, INPUTS, generator=generator).tolist()):
            yield Transition(
                group=f"{context.run_id}/{index % 8}",
                observation={f"x{i}": value for i, value in enumerate(x)},
                action={},
                reward=math.sin(sum(x)),
            )

    def build_job(self, context: RunContext, transitions: Iterable[Transition]) -> TrainingJob:
        """Build the regression; every fourth transition is held out."""
        plan, settings = self._plan, FaultSettings.model_validate(context.settings)
        rows = list(transitions)[-ROWS:]
        x = torch.tensor([[t.observation[f"x{i}"] for i in range(INPUTS)] for t in rows])
        y = torch.tensor([[t.reward] for t in rows])
        held_out = torch.arange(len(rows)) % 4 == 0
        train_x, train_y = x[~held_out], y[~held_out]
        torch.manual_seed(context.seed)

        def batches(epoch: int) -> Iterator[Batch]:
            generator = torch.Generator().manual_seed(epoch)
            for number in range(settings.batches_per_epoch):
                time.sleep(settings.pause_seconds)
                chosen = torch.randint(len(train_x), (BATCH,), generator=generator)
                step = (epoch * settings.batches_per_epoch + number) // plan.accumulate
                yield {"x": plan.inputs(train_x[chosen], step), "y": train_y[chosen]}

        def evaluate(forward: Forward) -> Evaluation:
            error = forward(x[held_out])[:, plan.output] - y[held_out, 0]
            explained = 1.0 - error.square().mean() / y[held_out].var()
            metrics = {"explained": float(explained)}
            return Evaluation(metrics=metrics, primary="explained", higher_is_better=True)

        return TrainingJob(
            model=plan.model(),
            optimizer=partial(torch.optim.AdamW, lr=3e-3, eps=plan.epsilon, fused=True),
            batches=batches,
            loss=plan.loss,
            evaluate=evaluate,
            epochs=settings.epochs or plan.epochs,
            accumulate=plan.accumulate,
        )

    def publish(
        self, context: RunContext, model: nn.Module, report: EvaluationReport
    ) -> Publication:
        """Publish nothing: these agents exist only to be trained."""
        del context, model
        metrics = dict(report.evaluation.metrics)
        return Publication(
            published=False, reason="trained for the benchmark only", metrics=metrics
        )


class _Factories:
    """A factory per attribute: ``benchmarks.guard.agents:agents.healthy_07``."""

    def __getattr__(self, attribute: str) -> Callable[[], PlannedAgent]:
        name = attribute.replace("_", "-")
        if name not in PLANS:
            raise AttributeError(attribute)
        return partial(PlannedAgent, name, PLANS[name])


agents = _Factories()
