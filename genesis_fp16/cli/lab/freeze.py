"""``genesis-fp16 lab freeze``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genesis_fp16.cli.lab.errors import LabFailedError, plain_errors
from genesis_fp16.cli.lab.frozen import resolved_device, run_in_worker, settings_with_device
from genesis_fp16.cli.lab.options import DeviceOrSettingOption
from genesis_fp16.cli.lab.progress import progress_lines
from genesis_fp16.cli.output import print_line

if TYPE_CHECKING:
    import torch


def freeze(
    folder: Annotated[Path, typer.Argument(help="New folder for the frozen experiment.")],
    agent: Annotated[
        str | None,
        typer.Option("--agent", help="Installed agent whose job is frozen; by default policy."),
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(
            "--base-model",
            help="Language model in place of an agent: a folder, FOLDER/FILE.gguf, or small.",
        ),
    ] = None,
    batches: Annotated[int, typer.Option("--batches", min=1, help="Batches to freeze.")] = 4,
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=2, help="Sequences in a batch of a policy.")
    ] = 8,
    steps: Annotated[
        int, typer.Option("--steps", min=0, help="Steps of a world model before the freeze.")
    ] = 100,
    rounds: Annotated[
        int, typer.Option("--rounds", min=0, help="Rounds of a policy after its warm-up.")
    ] = 5,
    max_new_tokens: Annotated[
        int,
        typer.Option("--max-new-tokens", min=1, help="Tokens of a base model's completion."),
    ] = 32,
    updates: Annotated[
        int, typer.Option("--updates", min=1, help="Updates of the base model between its weights.")
    ] = 2,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", min=0.0, help="Learning rate of these updates.")
    ] = 1e-5,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**53, help="Seed of everything that is drawn.")
    ] = 0,
    device: DeviceOrSettingOption = None,
) -> None:
    """Freeze weights, batches and everything else that a repetition in any precision needs.

    An agent's code runs in a child process, which trains its job a little in FP32 first.
    """
    if base_model is not None and agent is not None:
        raise LabFailedError("--agent and --base-model exclude each other: name one of them")
    from genesis_fp16.domain.run_spec import LabRequest

    settings = settings_with_device(device)
    size = {"batches": batches, "batch_size": batch_size}
    with plain_errors():
        if base_model is None:
            request = LabRequest(
                command="freeze",
                frozen=folder.absolute(),
                seed=seed,
                options={**size, "steps": steps, "rounds": rounds},
            )
            run_in_worker(settings, agent or "policy", request)
        else:
            of_base_model = {"max_new_tokens": max_new_tokens, "updates": updates}
            _freeze_base_model(
                folder,
                base_model,
                resolved_device(settings.device),
                seed,
                {**size, **of_base_model, "learning_rate": learning_rate},
            )
    print_line(f"frozen in {folder}")


def _freeze_base_model(
    folder: Path, base_model: str, device: torch.device, seed: int, size: dict[str, Any]
) -> None:
    from infrastructure.precision_lab.freezing import BaseModelSize, base_model_experiment
    from infrastructure.precision_lab.frozen import check_new, save_policy_experiment
    from infrastructure.precision_lab.small_policy import base_policy

    check_new(folder)
    sizes, progress = BaseModelSize(**size), progress_lines()
    prompts = sizes.batches * sizes.batch_size
    base = base_policy(base_model, seed=seed, prompts=prompts, progress=progress)
    experiment = base_model_experiment(base, device, sizes, seed=seed, progress=progress)
    save_policy_experiment(folder, experiment, source={"base_model": base.name}, seed=seed)
