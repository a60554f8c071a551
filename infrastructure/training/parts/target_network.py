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
        self.update(1, torch.zeros((), device=self._pairs[0][0].device), tau=1.0)

    @torch.no_grad()
    def update(self, steps: int, skipped: Tensor, tau: float | None = None) -> None:
        """Follow the source after its part's step number *steps*, unless that was *skipped*.

        Args:
            skipped: float32 ``[]``: 1 if the step was skipped, 0 if it was applied.
            tau: Used instead of the target's.
        """
        if tau is None and steps % self._target.every:
            return
        weight = (1.0 - skipped) * (self._target.tau if tau is None else tau)
        for target, source in self._pairs:
            target.lerp_(source, weight)
        for target_buffer, source_buffer in zip(
            self._follower.buffers(), self._source.buffers(), strict=True
        ):
            torch.where(skipped.bool(), target_buffer, source_buffer, out=target_buffer)


def _module(model: Module, name: str) -> Module:
    if name not in dict(model.named_modules()):
        raise ValueError(
            f"a target and its source are modules, and the model has no module {name!r}"
        )
    return model.get_submodule(name)
