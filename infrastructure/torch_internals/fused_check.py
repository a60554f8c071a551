"""The start-up check of torch's fused optimizers.

They divide each gradient by ``optimizer.grad_scale`` and leave parameters, moments and step count
alone where ``optimizer.found_inf`` is 1 (``torch/optim/adamw.py`` and its siblings). That is not
documented; `GradScaler.step` sets the same attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from infrastructure.torch_internals.direct_step import direct_step, plain_step


@cache
def skips_and_unscales(kind: type[Optimizer], device: torch.device) -> bool:
    """Whether fused optimizers of this *kind* unscale and skip as told; reads the device."""

    def stepped(grad: float, attributes: Mapping[str, float], *, first: bool) -> list[float]:
        parameter = Parameter(torch.ones(4, device=device))
        optimizer = cast("Any", kind)([parameter], lr=0.125, fused=True)
        if not first:
            parameter.grad = torch.ones_like(parameter)
            plain_step(optimizer)
        parameter.grad = torch.full_like(parameter, grad)
        if attributes:
            given = {name: torch.tensor(value, device=device) for name, value in attributes.items()}
            direct_step(optimizer, **given)
        elif grad:
            plain_step(optimizer)
        step = optimizer.state[parameter].get("step", torch.zeros(()))
        return [parameter[0].item(), step.item()]

    def right(*, first: bool) -> bool:
        before = stepped(0.0, {}, first=first)
        after = stepped(0.5, {}, first=first)
        scaled = stepped(4.0, {"grad_scale": 8.0, "found_inf": 0.0}, first=first)
        skipped = stepped(float("inf"), {"grad_scale": 8.0, "found_inf": 1.0}, first=first)
        return before == skipped != after == scaled

    return right(first=True) and right(first=False)
