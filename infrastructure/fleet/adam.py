"""Adam for all members of a fleet: the fused kernel on stacks, or on slices of them.

Shapes: F members of the fleet, G members of the group at hand, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from operator import is_
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Adam

from infrastructure.fleet.agreement import elementwise_agrees
from infrastructure.fleet.parameters import StackedParameters, own_storages
from infrastructure.training import FP16Trainer
from infrastructure.training.optimizer_step import adam_kernel, is_observed

_STATE = ("step", "exp_avg", "exp_avg_sq")


class StackedAdam:
    """Steps the Adam and AdamW optimizers of the members together, on a CPU.

    The state of each optimizer keeps its form; its tensors become slices of stacks.

    Args:
        trainers: Trainers of the fleet's members.
        parameters: Their parameters.
    """

    def __init__(self, trainers: Sequence[FP16Trainer], parameters: StackedParameters) -> None:
        self._trainers, self._parameters = trainers, parameters
        members, shapes = len(trainers), [stack.shape for stack in parameters.stacks]
        self._steps_FP = torch.zeros(members, len(shapes))
        self._step_slices = [own_storages(row) for row in self._steps_FP]
        self._moments = [[torch.zeros(shape) for shape in shapes] for _ in _STATE[1:]]
        self._slices = [[own_storages(stack) for stack in stacks] for stacks in self._moments]
        self._own = [
            [*self._step_slices[i], *(slices[i] for moment in self._slices for slices in moment)]
            for i in range(members)
        ]
        self._sources: list[object] = [None] * members  # the state that was adopted
        self._states: list[list[dict[str, Any]]] = [[] for _ in range(members)]
        largest = [trainer.config.max_grad_norm for trainer in trainers]
        inverse = [0.0 if most is None else 1.0 / most for most in largest]
        self._inverse_max_norms = torch.tensor(inverse)

    def can_step(self, i: int) -> bool:
        """Whether member *i*'s next step can be taken here; moves its moments to the stacks."""
        trainer = self._trainers[i]
        optimizer = trainer.optimizer
        if (
            trainer.device.type != "cpu"
            or trainer.fused_step_unavailable_reason is not None
            or trainer.config.adaptive_clip
            or not isinstance(optimizer, Adam)
            or len(optimizer.param_groups) != 1
            or is_observed(optimizer)
        ):
            return False
        group = optimizer.param_groups[0]
        if group["amsgrad"] or isinstance(group["lr"], Tensor):
            return False
        return self._adopt(i)

    def _adopt(self, i: int) -> bool:
        """Move member *i*'s state to the stacks; False before its first step, which makes it."""
        state = self._trainers[i].optimizer.state
        if self._sources[i] is not state:
            states = [cast("dict[str, Any]", state.get(p)) for p in self._parameters.own(i)]
            if not all(states):
                return False
            self._sources[i], self._states[i] = state, states
        states = self._states[i]
        found = [each[name] for name in _STATE for each in states]
        if not all(map(is_, found, self._own[i])):
            for own, value in zip(self._own[i], found, strict=True):
                if own is not value:
                    own.copy_(value)
            places = product(_STATE, states)
            for own, (name, each) in zip(self._own[i], places, strict=True):
                each[name] = own
        return True

    def release(self, i: int) -> None:
        """Give member *i* moments of its own."""
        for state in self._states[i]:
            state.update({name: state[name].clone() for name in _STATE})
        self._sources[i], self._states[i] = None, []

    @torch.no_grad()
    def step(
        self,
        members: Sequence[int],
        rows: Sequence[int],
        gradients: Sequence[Tensor],
        norm_G: Tensor,
        scale_G: Tensor | None,
    ) -> None:
        """Unscale, clip and apply gradients.

        Args:
            members: Members of the group by their place in the fleet, G of them.
            rows: Places in the group of those members whose step is applied.
            gradients: Scaled gradients, ``[G, *shape]`` each; they are changed.
            norm_G: Norms of the unscaled gradients, float32.
            scale_G: Loss scales, float32; None where all are 1.
        """
        inverse_G = self._inverse_max_norms
        if len(members) < len(inverse_G):
            inverse_G = inverse_G[list(members)]
        divisor_G = (norm_G * inverse_G).clamp_(min=1.0)
        if scale_G is not None:
            divisor_G.mul_(scale_G)
        if not bool((divisor_G == 1.0).all()):  # division by 1 changes nothing
            for gradient in gradients:
                gradient.div_(divisor_G.view(-1, *[1] * (gradient.dim() - 1)))
        alike: dict[tuple[object, ...], list[int]] = {}
        for row in rows:
            optimizer = self._trainers[members[row]].optimizer
            optimizer._opt_called = True  # type: ignore[attr-defined]  # for an LR scheduler
            alike.setdefault(_hyperparameters(optimizer), []).append(row)
        for same in alike.values():
            self._apply(members, same, gradients)

    def _apply(
        self, members: Sequence[int], rows: Sequence[int], gradients: Sequence[Tensor]
    ) -> None:
        everyone = len(rows) == len(self._trainers)
        if everyone:
            self._steps_FP += 1.0
        else:
            for row in rows:
                self._steps_FP[members[row]] += 1.0
        whole = everyone and bool((self._steps_FP == self._steps_FP[0, 0]).all())
        lists: tuple[list[Tensor], ...] = ([], [], [], [], [])
        firsts, seconds = self._moments
        for k, (stack, gradient) in enumerate(zip(self._parameters.stacks, gradients, strict=True)):
            if whole and elementwise_agrees(stack[0].numel(), len(stack)):
                tensors = (stack, gradient, firsts[k], seconds[k], self._step_slices[0][k])
                for each, tensor in zip(lists, tensors, strict=True):
                    each.append(tensor)
                continue
            of_row = gradient.unbind()
            for row in rows:
                i = members[row]
                lists[0].append(self._parameters.slices[k][i])
                lists[1].append(of_row[row])
                lists[2].append(self._slices[0][k][i])
                lists[3].append(self._slices[1][k][i])
                lists[4].append(self._step_slices[i][k])
        optimizer = self._trainers[members[rows[0]]].optimizer
        adam_kernel(optimizer, optimizer.param_groups[0], *lists)


def _hyperparameters(optimizer: torch.optim.Optimizer) -> tuple[object, ...]:
    group = optimizer.param_groups[0]
    return (
        type(optimizer),
        group.get("decoupled_weight_decay"),
        group["lr"],
        *group["betas"],
        group["eps"],
        group["weight_decay"],
        group["maximize"],
    )
