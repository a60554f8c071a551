"""An optimizer's settings in a recorded step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class GraphedSettings:
    """Gives a recorded step learning rates on the device, updated from the optimizer's.

    For the optimizer, its scheduler and a checkpoint they stay plain numbers. Every other setting
    is recorded as a constant; `recorded_values` shows whether one has changed.

    Args:
        optimizer: Fused optimizer.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device) -> None:
        self._optimizer, self._device = optimizer, device
        self._rates: list[Tensor] = []
        self._values: list[float] = []

    def recorded_values(self) -> list[dict[str, Any]]:
        """All settings that are constants in a recorded step; tensors by identity."""
        return [
            {
                key: id(value) if isinstance(value, Tensor) else value
                for key, value in group.items()
                if key != "params" and not (key == "lr" and _is_on_host(value))
            }
            for group in self._optimizer.param_groups
        ]

    def update_learning_rates(self) -> None:
        """Copy changed learning rates to the device; reads nothing from it."""
        for index, group in enumerate(self._optimizer.param_groups):
            rate = group["lr"]
            if _is_on_host(rate) and self._values[index] != rate:
                self._values[index] = float(rate)
                self._rates[index].fill_(self._values[index])

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Make the optimizer read its learning rates from the device, and allow recording.

        A learning rate that is already on the device stays where it is.
        """
        groups = self._optimizer.param_groups
        for group in groups[len(self._rates) :]:
            self._values.append(float(group["lr"]))
            self._rates.append(torch.tensor(self._values[-1], device=self._device))
        before = [(group["lr"], group.get("capturable")) for group in groups]
        for group, rate in zip(groups, self._rates, strict=True):
            if _is_on_host(group["lr"]):
                group["lr"] = rate
            if "capturable" in group:
                group["capturable"] = True
        try:
            yield
        finally:
            for group, (learning_rate, capturable) in zip(groups, before, strict=True):
                group["lr"] = learning_rate
                if "capturable" in group:
                    group["capturable"] = capturable


def _is_on_host(rate: float | Tensor) -> bool:
    return not isinstance(rate, Tensor) or rate.device.type == "cpu"
