"""The specification of an attempt, made from settings, run and precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import structlog
from pydantic import BaseModel, ConfigDict, JsonValue

from genesis_fp16.domain.attempt import Attempt, attempt_folder
from genesis_fp16.domain.run import Run
from genesis_fp16.domain.run_spec import LONGEST_SPEC, SPEC_FILE, RunSpec
from genesis_fp16.plugins.discovery import definition_of
from genesis_fp16.settings import Settings
from infrastructure.events import PrecisionState
from infrastructure.files import read_model

log = structlog.get_logger()


def make_spec(
    settings: Settings, run: Run, attempt: Attempt, entry_point: str, precision: PrecisionState
) -> RunSpec:
    """Make the specification for the worker of *attempt*.

    The agent's own settings are those of the run's first attempt, or of the run that it repeats:
    its checkpoints and its data would not fit others.
    """
    folder, agent_settings = attempt_folder(settings.home, attempt), settings.for_agent(run.agent)
    run_folder = folder.parents[1]
    repeats = None if run.baseline_of is None else run_folder.with_name(run.baseline_of)
    in_force = spec_of_settings(settings, run.agent)
    in_force["settings"] = _settings_of_run(run, repeats or run_folder, in_force["settings"])
    return RunSpec(
        run_id=run.id,
        attempt=attempt.number,
        incarnation=attempt.incarnation,
        agent=run.agent,
        entry_point=entry_point,
        run_folder=run_folder,
        repeats=repeats,
        attempt_folder=folder,
        seed=run.seed,
        precision=precision,
        processes_per_run=agent_settings.processes_per_run,
        parallel=agent_settings.parallel,
        **in_force,
    )


def spec_of_settings(settings: Settings, agent: str) -> dict[str, Any]:
    """The fields of a `RunSpec` that follow from the settings alone."""
    preset = settings.for_agent(agent).role_preset
    return {
        "agent_folder": settings.home.absolute() / "agents" / agent,
        "definition": definition_of(settings.home.absolute(), agent),
        "device": settings.device,
        "threads": settings.worker_threads,
        "trainer": settings.trainer_options(),
        "budget_seconds": settings.budget_seconds,
        "budget_transitions": settings.budget_transitions,
        "loop": settings.loop_settings(),
        "rung_search_seconds": settings.search_seconds_of(agent),
        "mismatch_interval_rounds": settings.mismatch_interval_rounds,
        "keep_models": settings.for_agent(agent).keep_models or settings.keep_models,
        "keep_fp32": settings.for_agent(agent).fp32_modules,
        "fp32_head": bool(preset is not None and preset.fp32_head),
        "preemption_file": settings.preemption_file,
        "preemption_url": settings.preemption_url,
        "settings": settings.for_agent(agent).settings,
    }


def _settings_of_run(run: Run, began_in: Path, now: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Settings of the first attempt in the run's folder *began_in*, else those of *now*."""
    attempts = [folder for folder in began_in.glob("attempts/*") if folder.name.isdecimal()]
    for folder in sorted(attempts, key=lambda attempt: int(attempt.name)):
        path = folder / SPEC_FILE
        try:
            first = read_model(path, _Began, limit=LONGEST_SPEC).settings
        except FileNotFoundError:
            continue  # there was no room on the disk for it
        except (OSError, ValueError) as error:
            log.warning(
                "settings_unreadable",
                agent=run.agent,
                run_id=run.id,
                file=str(path),
                error=str(error),
                consequence="those of the next attempt count, or else those in force now",
            )
            continue
        changed = {name for name in first | now if first.get(name) != now.get(name)}
        if changed:
            log.info(
                "settings_kept",
                agent=run.agent,
                run_id=run.id,
                changed=", ".join(sorted(name.upper() for name in changed)),
                consequence="the run keeps the agent's settings that it began with; the next run "
                "takes the new ones",
            )
        return first
    return now


class _Began(BaseModel):
    """The part of a `RunSpec` that holds for every attempt; reads those of other versions, too."""

    model_config = ConfigDict(hide_input_in_errors=True)  # the settings may be secret
    settings: dict[str, JsonValue]
