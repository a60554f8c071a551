"""An optimizer's settings as a recorded step sees them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class GraphedSettings:
    """Gives a recorded step learning rates on the device, which follow the optimizer's.

    To the optimizer, its scheduler and a checkpoint they stay the numbers they are. Every other
    setting is recorded as it is, and `recorded_values` tells whether one has changed.

    Args:
        optimizer: Fused.
        device: Of its parameters.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device) -> None:
        self._optimizer, self._device = optimizer, device
        self._rates: list[Tensor] = []
        self._values: list[float] = []

    def recorded_values(self) -> list[dict[str, Any]]:
        """All settings that a recorded step does not follow; tensors by identity."""
        return [
            {
                key: id(value) if isinstance(value, Tensor) else value
                for key, value in group.items()
                if key != "params" and not (key == "lr" and _is_on_host(value))
            }
            for group in self._optimizer.param_groups
        ]

    def update_learning_rates(self) -> None:
        """Bring the learning rates on the device up to date; reads nothing from it."""
        for index, group in enumerate(self._optimizer.param_groups):
            rate = group["lr"]
            if _is_on_host(rate) and self._values[index] != rate:
                self._values[index] = float(rate)
                self._rates[index].fill_(self._values[index])

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Let the optimizer take the learning rates from the device, and agree to be recorded.

        A learning rate that lies on the device already is read where it lies.
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
