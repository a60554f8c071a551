"""The agents whose runs are measured, and what each run needs of its daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import torch

from agents.se_darwin_agent import SEDarwinAgent
from benchmarks.se_darwin.pendulum import example_agent
from genesis_fp16.settings import Settings
from infrastructure.agent_contract import RunContext
from infrastructure.agent_contract.run_context import Budget
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
    folder, settings = home / name, Settings()
    run_folder = folder / "runs" / run
    run_folder.mkdir(parents=True)
    return RunContext(
        run_id=run,
        attempt=1,
        agent=name,
        device=str(CPU),
        seed=seed,
        agent_folder=folder,
        run_folder=run_folder,
        budget=Budget(seconds=seconds, transitions=settings.budget_transitions),
        settings=None,
        logger=SimpleNamespace(info=_ignore, warning=_ignore),
        report_progress=_ignore,
    )


def loop_options(seed: int, *, checkpoint_seconds: float | None = None) -> LoopOptions:
    """Options of a training as the daemon's default settings make them."""
    given = Settings().loop_settings().model_dump()
    if checkpoint_seconds is not None:
        given["checkpoint_interval_seconds"] = checkpoint_seconds
    return LoopOptions(seed=seed, **given)


def _ignore(*_: object, **__: object) -> None:
    """Ignore log events and progress reports."""
