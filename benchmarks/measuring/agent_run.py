"""A run of an agent in this process, as the daemon's worker does it."""

from __future__ import annotations

import logging
import math
import sys
from pathlib import Path

import structlog
import torch
from structlog.typing import FilteringBoundLogger

from agents.replay_agent import ReplayAgent
from infrastructure.agent_contract import EvaluationReport, Publication, RunContext
from infrastructure.agent_contract.run_context import Budget
from infrastructure.events import PrecisionState
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop import LoopOptions, train
from infrastructure.trajectories import ReplayBuffer

_ERRORS: FilteringBoundLogger = structlog.wrap_logger(
    structlog.PrintLogger(sys.stderr),
    wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
)


def run_context(
    agent: str,
    agent_folder: Path,
    run_id: str,
    seed: int,
    *,
    seconds: float = 3600.0,
    transitions: int = 1_000_000,
) -> RunContext:
    """Context of a run on the CPU that may collect for *seconds*, at most *transitions*.

    The run's folder is made where it does not exist yet.
    """
    run_folder = agent_folder / "runs" / run_id
    run_folder.mkdir(parents=True, exist_ok=True)
    return RunContext(
        run_id=run_id,
        attempt=1,
        agent=agent,
        device="cpu",
        seed=seed,
        agent_folder=agent_folder,
        run_folder=run_folder,
        budget=Budget(seconds=seconds, transitions=transitions),
        settings=None,
        logger=_ERRORS,
        report_progress=lambda *_, **__: None,
    )


def train_and_publish(
    agent: ReplayAgent, context: RunContext, buffer: ReplayBuffer
) -> tuple[Publication, int]:
    """Train on *buffer* in FP32; return the gate's decision, and the number of optimizer steps.

    Raises:
        InsufficientDataError: There are too few transitions.
    """
    job = agent.build_job(context, buffer.read())
    result = train(
        job,
        device=torch.device("cpu"),
        precision=PrecisionState(requested="fp32", effective="fp32", reason="no_accelerator"),
        config=FP16TrainingConfig(),
        options=LoopOptions(seed=context.seed, checkpoint_interval_seconds=math.inf),
        folder=context.run_folder / "checkpoints",
        emit=lambda _event: None,
        commands=tuple,
        best_epoch=context.run_folder / "best-epoch.pt",
    )
    if result.evaluation is None:
        raise RuntimeError("the training ended without an evaluation")
    report = EvaluationReport(
        evaluation=result.evaluation, steps=result.steps, epochs=result.epochs
    )
    return agent.publish(context, job.model.eval(), report), result.steps
