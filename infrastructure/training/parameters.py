"""What the trainer demands of a model's parameters."""

from __future__ import annotations

import torch
from torch.nn import Module, Parameter
from torch.optim import Optimizer


def device_of(model: Module) -> torch.device:
    """The one device that holds the model's parameters.

    Raises:
        ValueError: There are several, or no parameters.
    """
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) != 1:
        raise ValueError(f"the model's parameters must be on one device, found {devices or 'none'}")
    return devices.pop()


def float32_parameters(model: Module, optimizer: Optimizer) -> list[Parameter]:
    """The parameters in the optimizer; those that are frozen too, since they may be unfrozen.

    Raises:
        ValueError: One of the model or the optimizer is not float32, or there is none to update.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    chosen = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter in {**names, **dict.fromkeys(chosen)}:
        if parameter.dtype != torch.float32 and parameter.is_floating_point():
            raise ValueError(
                f"parameter {names.get(parameter, '(not in the model)')} is {parameter.dtype}: "
                "keep parameters float32 (model.float()); autocast makes the half copies"
            )
    if not any(p.requires_grad for p in chosen):
        raise ValueError("the optimizer updates no parameter: pass it model.parameters()")
    return chosen
