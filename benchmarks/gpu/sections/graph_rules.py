"""Which steps are eager, and which are recorded: seen by how often the loss is called."""

from __future__ import annotations

from collections.abc import Callable

import torch
from structlog.testing import capture_logs
from torch import Tensor

from benchmarks.gpu.section import Task
from benchmarks.gpu.training import HALF, train_watched
from benchmarks.step.loops import mse
from benchmarks.step.models import SIZES, Batch, build_batches, build_model
from infrastructure.agent_contract import Forward
from infrastructure.events.event import LostUpdatesMeasured
from infrastructure.training import FP16Trainer, FP16TrainingConfig
from infrastructure.training.cuda_graphs import GraphedTrainer

_STEPS = 8
_CALLS = [1, 2, 3, 4, 4, 4, 4, 4]  # three eager, one to record
_SHAPES = 8
_TELEMETRY_STEPS, _INTERVAL = 20_000, 500  # a graph's steps are short

Wrap = Callable[[FP16Trainer], GraphedTrainer]


def run(task: Task) -> None:
    """Decide the four claims."""
    if task.needs_cuda():
        return
    decide_rules(task, GraphedTrainer)
    watched = train_watched(
        "small",
        task.device,
        task.folder / "training",
        steps=_TELEMETRY_STEPS,
        telemetry=_INTERVAL,
        cuda_graph=True,
    )
    measured = sum(isinstance(each, LostUpdatesMeasured) for each in watched.events)
    refused = [each["reason"] for each in watched.logs if each["event"] == "cuda_graph_refused"]
    if not measured and not refused:
        task.findings.cannot("graph-telemetry", "no measurement was affordable in so few steps")
        return
    task.findings.decide(
        "graph-telemetry",
        holds=not refused,
        measured=f"{measured} measurements in {_TELEMETRY_STEPS} steps; "
        + (f"a graph was refused: {refused[0]}" if refused else "no graph was refused"),
        measurements=measured,
    )


def decide_rules(task: Task, wrap: Wrap) -> None:
    """Decide which steps are eager.

    Args:
        task: The section's task.
        wrap: Wraps a trainer for steps by graphs.
    """
    steps = _Steps(task.device, wrap)
    calls = [steps.take(rows=32) for _ in range(_STEPS)]
    task.findings.decide(
        "graph-first-steps",
        holds=calls == _CALLS and steps.graphs.refused_reason is None,
        measured=f"calls of the loss after each of {_STEPS} steps: {calls}; {steps.refused}",
    )
    steps = _Steps(task.device, wrap)
    with capture_logs() as logs:
        per_shape = [steps.take_many(rows=rows) for rows in range(1, _SHAPES + 2)]
    warnings = sum("shapes" in str(each.get("reason")) for each in logs)
    task.findings.decide(
        "graph-eight-shapes",
        holds=per_shape == [4] * _SHAPES + [_STEPS] and warnings == 1,
        measured=f"calls of the loss in {_STEPS} steps of each of nine shapes: {per_shape}; "
        f"{warnings} warning; {steps.refused}",
    )
    steps = _Steps(task.device, wrap)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(steps.optimizer, 1e-2, total_steps=40)
    calls = []
    for _ in range(2 * _STEPS):
        calls.append(steps.take(rows=32))
        scheduler.step()
    task.findings.decide(
        "graph-changing-settings",
        holds=calls == [*range(1, 2 * _STEPS + 1)] and steps.graphs.refused_reason is None,
        measured=f"{calls[-1]} calls of the loss in {2 * _STEPS} steps; {steps.refused}",
    )


class _Steps:
    """Steps of a tiny model, with a count of the calls of its loss."""

    def __init__(self, device: torch.device, wrap: Wrap) -> None:
        size = SIZES["tiny"]
        model = build_model(size, device, 0)
        self.optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        config = FP16TrainingConfig(cpu_half=True, loss_scale=1024.0)
        self.graphs = wrap(FP16Trainer(model, self.optimizer, config, wish=HALF))
        self._batch, self._calls = build_batches(size, device, 0)[0], 0
        self._loss = self._counted  # one object: a graph belongs to its loss

    @property
    def refused(self) -> str:
        """Whether graphs were refused altogether."""
        return f"refused: {self.graphs.refused_reason}"

    def take(self, *, rows: int) -> int:
        """Take a step with a batch of so many rows; return the calls so far."""
        x, y = self._batch
        self.graphs.train_batch(Batch(x[:rows], y[:rows]), self._loss)
        return self._calls

    def take_many(self, *, rows: int) -> int:
        """Take eight steps; return their calls."""
        before = self._calls
        for _ in range(_STEPS):
            self.take(rows=rows)
        return self._calls - before

    def _counted(self, forward: Forward, batch: Batch) -> Tensor:
        self._calls += 1
        return mse(forward, batch)
