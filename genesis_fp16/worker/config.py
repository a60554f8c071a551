"""The trainer's configuration, from what the daemon says and what was measured."""

from __future__ import annotations

import torch

from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.plugins.agent_folder import read_preflight
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.diagnostics.preflight.preflight import device_name


def trainer_config(spec: RunSpec, device: torch.device) -> FP16TrainingConfig:
    """The configuration of *spec*'s trainer on *device*.

    Where the operator names no initial loss scale, it is the one that the agent's last pre-flight
    recommended, if that was on the like of this device.
    """
    options = spec.trainer.model_dump()
    preset, scale = options.pop("preset"), options.pop("loss_scale")
    base = FP16TrainingConfig.preset(preset) if preset else FP16TrainingConfig()
    if options["growth_interval"] is None:
        options["growth_interval"] = base.growth_interval
    report = read_preflight(spec.agent_folder)
    if scale is None and report is not None and report.device_name == device_name(device):
        scale = report.recommended_scale
    scale = max(scale or base.loss_scale, spec.trainer.min_loss_scale)
    return FP16TrainingConfig(cpu_half=spec.cpu_half, loss_scale=scale, **options)
