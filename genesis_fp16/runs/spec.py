"""The specification of an attempt, made from settings, run and precision."""

from __future__ import annotations

from typing import Any

from genesis_fp16.domain.attempt import Attempt, attempt_folder
from genesis_fp16.domain.run import Run
from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.settings import Settings
from infrastructure.events import PrecisionState


def make_spec(
    settings: Settings, run: Run, attempt: Attempt, entry_point: str, precision: PrecisionState
) -> RunSpec:
    """Make the specification for the worker of *attempt*."""
    folder, own = attempt_folder(settings.home, attempt), settings.for_agent(run.agent)
    return RunSpec(
        run_id=run.id,
        attempt=attempt.number,
        incarnation=attempt.incarnation,
        agent=run.agent,
        entry_point=entry_point,
        run_folder=folder.parents[1],
        repeats=None if run.baseline_of is None else folder.parents[2] / run.baseline_of,
        attempt_folder=folder,
        seed=run.seed,
        precision=precision,
        processes_per_run=own.processes_per_run,
        parallel=own.parallel,
        **spec_of_settings(settings, run.agent),
    )


def spec_of_settings(settings: Settings, agent: str) -> dict[str, Any]:
    """The fields of a `RunSpec` that follow from the settings alone."""
    return {
        "agent_folder": settings.home.absolute() / "agents" / agent,
        "device": settings.device,
        "threads": settings.worker_threads,
        "trainer": settings.trainer_options(),
        "budget_seconds": settings.budget_seconds,
        "budget_transitions": settings.budget_transitions,
        "stats_interval_steps": settings.stats_interval_steps,
        "baseline_interval_steps": settings.baseline_interval_steps,
        "mismatch_interval_rounds": settings.mismatch_interval_rounds,
        "checkpoint_interval_seconds": settings.checkpoint_interval_seconds,
        "keep_checkpoints": settings.keep_checkpoints,
        "profile_steps": settings.profile_steps,
        "keep_fp32": settings.for_agent(agent).fp32_modules,
        "settings": settings.for_agent(agent).settings,
    }
