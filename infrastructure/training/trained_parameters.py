"""The parameters that a trainer updates, with the errors of a model that it cannot train."""

from __future__ import annotations

import torch
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from infrastructure.training.multi_optimizer import members_of
from infrastructure.training.precision.frozen_halves import HALF_TYPES


def device_of(model: Module) -> torch.device:
    """The device of all parameters of *model*.

    Raises:
        ValueError: They are on several devices, or there are none.
    """
    devices = {parameter.device for parameter in model.parameters()}
    if not devices:
        raise ValueError("the model has no parameters, so there is nothing to train")
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(
            f"the model's parameters must be on one device, found {names}: call model.to(device)"
        )
    return devices.pop()


def trained_parameters(model: Module, optimizer: Optimizer) -> list[Parameter]:
    """The optimizer's parameters, including frozen ones, since they may be unfrozen later.

    Raises:
        ValueError: A parameter of the model is neither float32 nor frozen in a half type, or the
            optimizer holds a parameter that is not the model's, one of them twice, or none to
            update.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, name in names.items():
        if parameter.dtype == torch.float32 or not parameter.is_floating_point():
            continue
        if parameter.dtype not in HALF_TYPES or parameter.requires_grad:
            raise ValueError(
                f"parameter {name} is {parameter.dtype}: keep parameters that are trained float32 "
                "(model.float()), autocast makes the half copies; a frozen one (requires_grad is "
                "False) may be float16 or bfloat16"
            )
        if hasattr(parameter, "placements"):
            raise ValueError(
                f"parameter {name} is {parameter.dtype} and sharded: shard a model whose "
                "parameters are all float32, or use DDP"
            )
    chosen = [p for group in optimizer.param_groups for p in group["params"]]
    if foreign := [p for p in chosen if p not in names]:
        raise ValueError(
            f"{len(foreign)} of the optimizer's {len(chosen)} parameters are not the model's, the "
            f"first of shape {tuple(foreign[0].shape)}, and would be missing in checkpoints: build "
            "the optimizer from model.parameters() after the last change of the model, such as a "
            "new layer or fully_shard(); make other parameters part of the model "
            "(nn.ModuleDict), or give another network a trainer of its own"
        )
    holders: dict[Parameter, Optimizer] = {}
    for member in members_of(optimizer):
        for p in [p for group in member.param_groups for p in group["params"]]:
            if holders.setdefault(p, member) is not member:
                raise ValueError(
                    f"parameter {names[p]} is in two optimizers, {type(holders[p]).__name__} and "
                    f"{type(member).__name__}, and each would update it: leave it out of one"
                )
    if not any(p.requires_grad for p in chosen):
        raise ValueError("the optimizer updates no parameter: pass it model.parameters()")
    return chosen
