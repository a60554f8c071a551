"""The agents whose runs are measured, and what each run needs of its daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from agents.se_darwin_agent import SEDarwinAgent
from benchmarks.measuring.agent_run import run_context
from benchmarks.se_darwin.pendulum import example_agent
from genesis_fp16.settings import Settings
from infrastructure.agent_contract import RunContext
from infrastructure.events import PrecisionState
from infrastructure.training.loop import LoopOptions
from infrastructure.world_model_agent import WorldModelAgent

CPU = torch.device("cpu")
NEVER_SECONDS = 1e9
PRECISION = PrecisionState(requested="fp16", effective="fp32", reason="no_accelerator")
"""What the daemon decides by default on a machine without an accelerator."""

AGENTS: Mapping[str, Callable[[], WorldModelAgent]] = {
    "pendulum": example_agent,
    "se-darwin": SEDarwinAgent,
}


def make_context(name: str, home: Path, run: str, *, seed: int, seconds: float) -> RunContext:
    """The context of the agent *name* in *home*; it may collect for *seconds*.

    Args:
        run: Name of the run's folder, which is created.
    """
    budget = Settings().budget_transitions
    return run_context(name, home / name, run, seed, seconds=seconds, transitions=budget)


def loop_options(seed: int, *, checkpoint_seconds: float | None = None) -> LoopOptions:
    """Options of a training as the daemon's default settings make them."""
    given = Settings().loop_settings().model_dump()
    if checkpoint_seconds is not None:
        given["checkpoint_interval_seconds"] = checkpoint_seconds
    return LoopOptions(seed=seed, **given)
