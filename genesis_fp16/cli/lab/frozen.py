"""What freezing and repeating share: the device, and a worker that runs an agent's code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from genesis_fp16.cli.lab.errors import LabFailedError
from genesis_fp16.cli.lab.progress import print_progress, progress_lines
from genesis_fp16.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from genesis_fp16.domain.run_spec import LabRequest
    from genesis_fp16.settings import Settings
    from infrastructure.agent_contract.run_context import ReportProgress
    from infrastructure.precision_lab.experiments import PolicyExperiment
    from infrastructure.precision_lab.frozen import FrozenFolder


def settings_with_device(device: str | None) -> Settings:
    """The settings, with *device* instead of theirs if it is not None."""
    settings = load_settings()
    return settings if device is None else settings.model_copy(update={"device": device})


def resolved_device(name: str) -> torch.device:
    """The device *name*.

    Raises:
        LabFailedError: It does not exist.
    """
    from infrastructure.training.precision import resolve_device

    try:
        return resolve_device(name)
    except ValueError as error:
        raise LabFailedError(str(error)) from error


def run_in_worker(settings: Settings, agent: str, request: LabRequest) -> None:
    """Have a worker do *request* with *agent*'s job.

    Raises:
        AgentTaskError: It was not done.
    """
    from genesis_fp16.daemon.agent_task import run_agent_task

    print_progress(f"starting a worker with the agent {agent}")
    done = "frozen" if request.command == "freeze" else "repeated"
    run_agent_task(settings, agent, "lab", done=done, request=request, progress=progress_lines())


def repeat(
    folder: FrozenFolder,
    command: str,
    options: Mapping[str, str | float],
    *,
    output: Path,
    device: str | None,
    here: Callable[[PolicyExperiment, ReportProgress], object],
) -> None:
    """Repeat the experiment in *folder*.

    Args:
        folder: A frozen experiment.
        command: Name of the command.
        options: Options of the command, for the worker that repeats an agent's experiment.
        output: Folder of the results.
        device: Where to compute; None for the setting.
        here: What repeats a policy, in this process, and reports its progress.

    Raises:
        LabError: The folder cannot be used.
        AgentTaskError: The worker did not do it.
    """
    from genesis_fp16.domain.run_spec import LabRequest
    from infrastructure.precision_lab.frozen import load_policy_experiment

    settings, agent = settings_with_device(device), folder.manifest.agent
    if agent is None:
        folder.verify()
        here(load_policy_experiment(folder, resolved_device(settings.device)), progress_lines())
    else:
        request = LabRequest(
            command=command,
            frozen=folder.path.absolute(),
            results=output.absolute(),
            seed=agent.seed,
            options=dict(options),
        )
        run_in_worker(settings, agent.name, request)
