"""Agents with planted faults, and healthy ones: what the guard must tell apart.

A plugin of its own: `benchmarks.guard.daemon` copies it into a folder beside the metadata that an
installer would write. Every agent trains a small network on the same kind of regression, in
earnest.
"""

from __future__ import annotations

import math
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
    absorbed,
    clean,
    faint,
    faint_side,
    missing,
    network,
    planted,
    squared_error,
    too_large,
    too_large_at_times,
    too_large_backward,
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
    """How long a run lasts; by default as long as its `Plan` says."""

    model_config = ConfigDict(extra="forbid")
    epochs: int | None = None
    batches_per_epoch: int = 100


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one agent trains.

    Attributes:
        expected: The guard's trigger; empty for a healthy agent.
        onset: Step at which its fault begins.
        model: Builds it; the generator was seeded before.
        loss, accumulate: See `TrainingJob`.
        inputs: Of a batch's inputs and the step makes the inputs.
        epsilon: Of Adam; tiny where faint gradients are to count.
        output: Which output the held-out metric is about.
        epochs: Of a run.
    """

    model: Callable[[], nn.Module]
    expected: str = ""
    onset: int = 0
    loss: Callable[[Forward, Batch], Tensor] = squared_error
    inputs: Callable[[Tensor, int], Tensor] = clean
    epsilon: float = 1e-8
    output: int = 0
    accumulate: int = 1
    epochs: int = 20


FAULTS: Mapping[str, Plan] = {
    "overflow-forward": Plan(
        expected="nonfinite_loss", onset=ONSET_STEP, model=partial(planted, too_large)
    ),
    "overflow-backward": Plan(
        expected="scale_floor", onset=ONSET_STEP, model=partial(planted, too_large_backward)
    ),
    "underflow": Plan(
        expected="underflow",
        model=partial(network, 32),
        loss=partial(faint, 1e-12),
        epsilon=1e-30,
        epochs=100,  # comparisons come once a second, however fast the machine steps
    ),
    "loss-drift": Plan(
        expected="loss_drift",
        onset=ONSET_STEP,
        model=partial(planted, absorbed),
        epochs=300,
    ),
    "metric-drift": Plan(
        expected="metric_drift", model=TwoHeads, loss=faint_side, epsilon=1e-30, output=1
    ),
    "nan-in-data": Plan(
        expected="nonfinite_loss", onset=ONSET_STEP, model=partial(network, 32), inputs=missing
    ),
}
STORMS: Mapping[str, Plan] = {  # for a loss scale that recovers fast: FP16_GROWTH_INTERVAL=2
    "overflow-storm": Plan(
        expected="overflow_storm",
        model=partial(planted, too_large_at_times("..x"), 0),
        loss=partial(faint, 1e-6),
        epochs=100,  # so do statistics, and a window of them is no shorter
    ),
    "overflow-sustained": Plan(
        expected="overflow_sustained",
        model=partial(planted, too_large_at_times("...x"), 0),
        loss=partial(faint, 1e-6),
        epochs=100,
    ),
}
_HEALTHY = (
    Plan(model=partial(network, 16)),
    Plan(model=partial(network, 64)),
    Plan(model=partial(network, 32, nn.BatchNorm1d(32))),
    Plan(model=partial(network, 32, nn.Dropout(0.1)), accumulate=2),
    Plan(model=partial(network, 32, nn.LayerNorm(32)), loss=partial(faint, 1e-3), epsilon=1e-12),
)
HEALTHY: Mapping[str, Plan] = {
    f"healthy-{number:02}": _HEALTHY[number % len(_HEALTHY)] for number in range(HEALTHY_AGENTS)
}
PLANS: Mapping[str, Plan] = {**FAULTS, **STORMS, **HEALTHY}


class PlannedAgent:
    """Learns the sum of its inputs, bent, as a `Plan` says."""

    contract_version = CONTRACT_VERSION

    def __init__(self, name: str, plan: Plan) -> None:
        self.name, self._plan = name, plan

    def schedule(self) -> Schedule:
        """Once a day; a benchmark says otherwise where it wants several runs."""
        return Schedule.parse("every 1d")

    def settings_model(self) -> type[BaseModel]:
        """See `FaultSettings`."""
        return FaultSettings

    def collect(self, context: RunContext) -> Iterator[Transition]:
        """Yield one transition of real arithmetic after the other."""
        generator = torch.Generator().manual_seed(context.seed)
        for index, x in enumerate(torch.randn(ROWS, INPUTS, generator=generator).tolist()):
            yield Transition(
                group=f"{context.run_id}/{index % 8}",
                observation={f"x{i}": value for i, value in enumerate(x)},
                action={},
                reward=math.sin(sum(x)),
            )

    def build_job(self, context: RunContext, transitions: Iterable[Transition]) -> TrainingJob:
        """The regression, on every fourth transition held out."""
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
        """Publish nothing: these agents exist to be trained."""
        del context, model
        metrics = dict(report.evaluation.metrics)
        return Publication(published=False, reason="only trained to be watched", metrics=metrics)


class _Factories:
    """One factory an attribute: ``benchmarks.guard.agents:agents.healthy_07``."""

    def __getattr__(self, attribute: str) -> Callable[[], PlannedAgent]:
        name = attribute.replace("_", "-")
        if name not in PLANS:
            raise AttributeError(attribute)
        return partial(PlannedAgent, name, PLANS[name])


agents = _Factories()
