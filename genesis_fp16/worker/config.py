"""Configuration of trainer and loop, from an attempt's specification and the pre-flight check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from genesis_fp16.domain.run_spec import RunSpec, TrainerOptions
from genesis_fp16.plugins.agent_folder import read_preflight
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop import LoopOptions
from infrastructure.training.precision import device_name


def trainer_config(
    trainer: TrainerOptions, agent_folder: Path, device: torch.device
) -> FP16TrainingConfig:
    """The configuration of a trainer on *device* by the operator's options.

    If the operator sets no initial loss scale, it is the one that the agent's last pre-flight
    check recommended, provided that check ran on the same kind of device.
    """
    options = trainer.model_dump(by_alias=False, exclude={"fp16_preset"}, exclude_none=True)
    options["max_grad_norm"] = options["max_grad_norm"] or None
    preset, report = trainer.fp16_preset, read_preflight(agent_folder)
    base = FP16TrainingConfig.preset(preset) if preset else FP16TrainingConfig()
    scale = options.pop("loss_scale", None)
    if scale is None and report is not None and report.device_name == device_name(device):
        scale = report.recommended_scale
    options["loss_scale"] = max(scale or base.loss_scale, options["min_loss_scale"])
    return replace(base, **options)


def loop_options(spec: RunSpec) -> LoopOptions:
    """The options of the training loop of an attempt."""
    return LoopOptions(seed=spec.seed, parallel=spec.parallel, **spec.loop.model_dump())
