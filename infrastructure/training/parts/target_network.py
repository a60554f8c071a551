"""A module that follows another one, without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from infrastructure.agent_contract import Target
from infrastructure.training.parts.part_parameters import source_part


class TargetNetwork:
    """Carries out a `Target` of *model*.

    Args:
        chosen: The parameters that each part trains, by the part's name.

    Attributes:
        part: Name of the part that trains the source.
        host_decides: Whether the host reads if an update is due. On a CPU it waits for nothing.

    Raises:
        ValueError: See `source_part`.
    """

    def __init__(self, target: Target, model: Module, chosen: dict[str, list[Parameter]]) -> None:
        self._target = target
        self.part, self._pairs = source_part(target, model, chosen)
        self._follower, self._source = (
            _module(model, name) for name in (target.module, target.source)
        )
        forms = [
            {name: (buffer.shape, buffer.dtype) for name, buffer in module.named_buffers()}
            for module in (self._follower, self._source)
        ]
        if forms[0] != forms[1]:
            raise ValueError(
                f"target {target.module!r} and its source {target.source!r} have different "
                "buffers: make the target a copy of the source (copy.deepcopy)"
            )
        for parameter, _ in self._pairs:
            parameter.requires_grad_(False)
        device = self._pairs[0][0].device
        self.host_decides = device.type == "cpu"
        self._applied = torch.zeros((), dtype=torch.int64, device=device)
        self._follow(torch.ones((), dtype=torch.bool, device=device), tau=1.0)

    def count_applied(self, steps: int) -> None:
        """Go on as after so many applied *steps* of the source's part."""
        self._applied.fill_(steps)

    def update(self, skipped: Tensor) -> None:
        """Follow the source after a step of its part, if that was applied and it is time.

        Args:
            skipped: float32 ``[]``: 1 if the step was skipped, 0 if it was applied.
        """
        is_applied = skipped == 0
        self._applied += is_applied
        is_due = is_applied & (self._applied % self._target.every == 0)
        if not self.host_decides or is_due.item():
            self._follow(is_due, self._target.tau)

    @torch.no_grad()
    def _follow(self, is_due: Tensor, tau: float) -> None:
        weight = is_due.float() * tau
        for target, source in self._pairs:
            target.lerp_(source, weight)
        for target_buffer, source_buffer in zip(
            self._follower.buffers(), self._source.buffers(), strict=True
        ):
            torch.where(is_due, source_buffer, target_buffer, out=target_buffer)


def _module(model: Module, name: str) -> Module:
    if name not in dict(model.named_modules()):
        raise ValueError(
            f"a target and its source are modules, and the model has no module {name!r}"
        )
    return model.get_submodule(name)
