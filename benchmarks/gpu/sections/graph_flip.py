"""A live flip of precision in a training by CUDA graphs."""

from __future__ import annotations

import time

import torch

from benchmarks.gpu.section import Task
from benchmarks.gpu.sections.cuda_tests import decide
from benchmarks.gpu.training import HALF, SINGLE
from benchmarks.measuring.observe import effective_precision
from benchmarks.step.loops import mse
from benchmarks.step.models import SIZES, build_batches, build_model
from infrastructure.training import FP16Trainer, FP16TrainingConfig
from infrastructure.training.cuda_graphs import GraphedTrainer

_LIMIT_SECONDS = 2.0
_STEPS = 8  # between two flips: three are eager, the fourth is recorded
_FLIPS = (SINGLE, HALF, SINGLE, HALF)


def run(task: Task) -> None:
    """Flip there and back twice: first while FP32 has no graph, then with both graphs."""
    if task.needs_cuda():
        return
    decide(task, "graph-flip-and-load")
    size = SIZES["small"]
    model = build_model(size, task.device, 0)
    trainer = FP16Trainer(
        model, torch.optim.AdamW(model.parameters(), fused=True), FP16TrainingConfig(), wish=HALF
    )
    graphs = GraphedTrainer(trainer)
    batch = build_batches(size, task.device, 0)[0]
    seconds, wrong = [], []
    for _ in range(_STEPS):
        graphs.train_batch(batch, mse)
    for place, wish in enumerate(_FLIPS):
        torch.cuda.synchronize(task.device)
        before, begun = trainer.record.fp16_steps, time.perf_counter()
        trainer.set_precision(wish)
        seen = effective_precision(lambda: graphs.train_batch(batch, mse), task.device)
        torch.cuda.synchronize(task.device)
        seconds.append(time.perf_counter() - begun)
        counted = "fp16" if trainer.record.fp16_steps > before else "fp32"
        # A graph dispatches nothing, so that only an eager step shows its products.
        if counted != wish.effective or seen not in ("none", wish.effective):
            wrong.append(f"flip {place} to {wish.effective}: computed {seen}, counted {counted}")
        for _ in range(_STEPS):
            graphs.train_batch(batch, mse)
    problem = "; ".join([*wrong, *([graphs.refused_reason] if graphs.refused_reason else [])])
    task.findings.decide(
        "graph-flip-next-step",
        holds=not problem and max(seconds) < _LIMIT_SECONDS,
        measured=problem
        or f"four flips with the step after them took {1e3 * min(seconds):.1f} to "
        f"{1e3 * max(seconds):.1f} ms",
        longest_seconds=max(seconds),
    )
