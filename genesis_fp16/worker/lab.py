"""What the precision lab does with an agent's job: freeze it, or repeat what was frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType

import torch

from genesis_fp16.domain.run_spec import LabRequest, RunSpec
from infrastructure.agent_contract import Job, RunContext, TrainingJob
from infrastructure.agent_contract.on_policy_job import OnPolicyJob
from infrastructure.agent_contract.run_context import ReportProgress
from infrastructure.precision_lab import LabError
from infrastructure.precision_lab.bisect import bisect_folder
from infrastructure.precision_lab.experiments import WorldModelExperiment
from infrastructure.precision_lab.freezing import (
    FreezeSize,
    policy_job_experiment,
    world_model_experiment,
)
from infrastructure.precision_lab.frozen import (
    AgentSource,
    FrozenError,
    FrozenFolder,
    check_new,
    load_world_model_experiment,
    save_policy_experiment,
    save_world_model_experiment,
)
from infrastructure.precision_lab.replay import replay_folder
from infrastructure.trajectories import BufferSnapshot

Repeat = Callable[[FrozenFolder, WorldModelExperiment, LabRequest, ReportProgress], None]
"""A command of the lab that repeats a frozen experiment of an agent."""


def _replay(
    folder: FrozenFolder,
    experiment: WorldModelExperiment,
    request: LabRequest,
    progress: ReportProgress,
) -> None:
    preset = str(request.options["preset"])
    replay_folder(folder, experiment, preset, request.results, progress)


def _bisect(
    folder: FrozenFolder,
    experiment: WorldModelExperiment,
    request: LabRequest,
    progress: ReportProgress,
) -> None:
    preset, tolerance = str(request.options["preset"]), float(str(request.options["tolerance"]))
    bisect_folder(folder, experiment, preset, request.results, tolerance, progress)


REPEATS: Mapping[str, Repeat] = MappingProxyType({"bisect": _bisect, "replay": _replay})


def freeze_job(
    job: Job,
    spec: RunSpec,
    request: LabRequest,
    data: Path,
    snapshot: BufferSnapshot,
    context: RunContext,
) -> None:
    """Train *job* a little in FP32 and write a frozen experiment.

    Args:
        job: Job of the agent.
        spec: Specification of this worker.
        request: Where to write it, and how much.
        data: Folder of the transitions that *job* was built from.
        snapshot: Which of them.
        context: Where to compute, and whom to tell of the progress.

    Raises:
        LabError: The folder is not empty, or the job cannot be frozen.
        OSError: The disk refuses.
    """
    check_new(request.frozen)
    device, progress = torch.device(context.device), context.report_progress
    options = {field.name: request.options[field.name] for field in fields(FreezeSize)}
    size = FreezeSize(**{name: int(str(value)) for name, value in options.items()})
    source: dict[str, str | int | None] = {"agent": spec.agent, "entry_point": spec.entry_point}
    if isinstance(job, OnPolicyJob):
        policy = policy_job_experiment(job, device, size, seed=spec.seed, progress=progress)
        save_policy_experiment(
            request.frozen, policy, source={**source, "rounds": size.rounds}, seed=spec.seed
        )
        return
    if not isinstance(job, TrainingJob):
        raise LabError(
            f"build_job() of {spec.agent} returned a {type(job).__name__}: the lab can freeze a "
            "TrainingJob of a world model, or an OnPolicyJob; choose an agent that builds one"
        )
    experiment = world_model_experiment(job, device, size, progress)
    agent = AgentSource(
        name=spec.agent,
        seed=spec.seed,
        settings_sha256=_hash_of_settings(spec),
        transitions=snapshot.to_json(),
        keep_fp32=tuple(experiment.keep_fp32),
    )
    save_world_model_experiment(
        request.frozen,
        experiment,
        source={**source, "steps": size.steps},
        agent=agent,
        transitions=data,
    )


def repeat_job(
    build_job: Callable[[Path, BufferSnapshot], Job],
    spec: RunSpec,
    request: LabRequest,
    context: RunContext,
) -> None:
    """Build the job of a frozen experiment again and do the command of *request* with it.

    Args:
        build_job: Function from the folder of the transitions and which of them to the job.
        spec: Specification of this worker.
        request: The command and the folder.
        context: Where to compute, and whom to tell of the progress.

    Raises:
        LabError: The folder cannot be used, or the agent or its settings have changed.
        OSError: The disk refuses.
    """
    folder = FrozenFolder(request.frozen)
    folder.verify()
    agent = folder.manifest.agent
    if agent is None:
        raise FrozenError(folder.path, "holds a policy, which needs no agent")
    if agent.settings_sha256 != _hash_of_settings(spec):
        raise FrozenError(
            folder.path,
            f"the settings of the agent {agent.name} have changed since the freeze: restore them, "
            "or freeze again",
        )
    try:
        snapshot = BufferSnapshot.from_json(dict(agent.transitions))
    except ValueError as error:
        raise FrozenError(folder.path, f"{error}: freeze again") from error
    job = build_job(folder.path / "data", snapshot)
    experiment = load_world_model_experiment(folder, job, torch.device(context.device))
    experiment = replace(experiment, keep_fp32=agent.keep_fp32)
    REPEATS[request.command](folder, experiment, request, context.report_progress)


def _hash_of_settings(spec: RunSpec) -> str:
    return hashlib.sha256(json.dumps(spec.settings, sort_keys=True).encode()).hexdigest()
