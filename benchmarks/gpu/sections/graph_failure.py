"""A recording that fails: on a torch that survives it, and on an older one that does not."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.gpu.section import Task
from benchmarks.gpu.sections.cuda_tests import decide
from benchmarks.step.loops import mse
from benchmarks.step.models import SIZES, Batch, build_batches, build_model
from infrastructure.agent_contract import Forward
from infrastructure.training import FP16Trainer, FP16TrainingConfig
from infrastructure.training.cuda_graphs import GraphedTrainer

_SURVIVES_FAILURE = "2.13"
_STEPS = 5  # three are eager, the fourth is recorded


def run(task: Task) -> None:
    """Record a step that reads the device."""
    if task.needs_cuda():
        return
    if torch.__version__ >= _SURVIVES_FAILURE:
        task.findings.cannot("graph-failure-old-torch", f"this is torch {torch.__version__}")
        decide(task, "graph-failure")
        return
    task.findings.cannot("graph-failure", f"this is torch {torch.__version__}")
    message = ""
    try:
        _train(task.device)
    except RuntimeError as error:
        message = str(error)
    task.findings.decide(
        "graph-failure-old-torch",
        holds="set cuda_graph=False" in message,
        measured=message or f"{_STEPS} steps passed without an error",
    )


def _train(device: torch.device) -> None:
    size = SIZES["tiny"]
    model = build_model(size, device, 0)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    graphs = GraphedTrainer(FP16Trainer(model, optimizer, FP16TrainingConfig()))
    for batch in build_batches(size, device, 0)[:_STEPS]:
        graphs.train_batch(batch, _reading)


def _reading(forward: Forward, batch: Batch) -> Tensor:
    loss = mse(forward, batch)
    return loss * (2.0 if loss.item() > 0 else 1.0)
