"""Adam for all members of a fleet: the fused kernel on stacks, or on slices of them.

Shapes: F members of the fleet, G members of the group at hand, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, product
from operator import is_, itemgetter
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Adam

from infrastructure.fleet.agreement import elementwise_agrees
from infrastructure.fleet.parameters import StackedParameters, own_storages
from infrastructure.torch_internals.direct_step import CALLED, adam_kernel, is_observed
from infrastructure.training import FP16Trainer

_STATE = ("step", "exp_avg", "exp_avg_sq")
_tensors_of = itemgetter(*_STATE)
_hyperparameters_of = itemgetter("lr", "betas", "eps", "weight_decay", "maximize")


class StackedAdam:
    """Steps the Adam and AdamW optimizers of the members together, on a CPU.

    The state of each optimizer keeps its form; its tensors become slices of stacks.

    Args:
        trainers: Trainers of the fleet's members.
        parameters: Their parameters.
    """

    def __init__(self, trainers: Sequence[FP16Trainer], parameters: StackedParameters) -> None:
        self._trainers, self._parameters = trainers, parameters
        self._optimizers = [trainer.optimizer for trainer in trainers]
        self._are_adam = [
            trainer.device.type == "cpu"
            and isinstance(trainer.optimizer, Adam)
            and not trainer.config.adaptive_clip
            for trainer in trainers
        ]
        members, shapes = len(trainers), [stack.shape for stack in parameters.stacks]
        self._steps_FP = torch.zeros(members, len(shapes))
        self._step_slices = [own_storages(row) for row in self._steps_FP]
        self._moments = [[torch.zeros(shape) for shape in shapes] for _ in _STATE[1:]]
        self._slices = [[own_storages(stack) for stack in stacks] for stacks in self._moments]
        self._sizes = [shape[1:].numel() for shape in shapes]
        self._own = [
            [
                tensor
                for k, step in enumerate(self._step_slices[i])
                for tensor in (step, *(slices[k][i] for slices in self._slices))
            ]
            for i in range(members)
        ]
        self._all_own = list(chain.from_iterable(self._own))
        self._sources: list[object] = [None] * members  # the state that was adopted
        self._states: list[list[dict[str, Any]]] = [[] for _ in range(members)]
        self._all_states: list[dict[str, Any]] = []
        largest = [trainer.config.max_grad_norm for trainer in trainers]
        inverse = [0.0 if most is None else 1.0 / most for most in largest]
        self._inverse_max_norms = torch.tensor(inverse)

    def can_step(self, members: Sequence[int]) -> list[bool]:
        """Whether the next step of each of *members* can be taken here.

        Moves the moments of those that can to the stacks.
        """
        are_plain = [self._is_plain(i) for i in members]
        if len(members) == len(self._trainers) and all(are_plain):
            sources = [optimizer.state for optimizer in self._optimizers]
            if all(map(is_, self._sources, sources)):
                tensors = list(chain.from_iterable(map(dict.values, self._all_states)))
                if len(tensors) == len(self._all_own) and all(map(is_, tensors, self._all_own)):
                    return are_plain
        can_step = [
            is_plain and self._adopt(i) for i, is_plain in zip(members, are_plain, strict=True)
        ]
        self._all_states = list(chain.from_iterable(self._states))
        return can_step

    def _is_plain(self, i: int) -> bool:
        """Whether member *i*'s optimizer has nothing that a fleet does not compute."""
        optimizer = self._optimizers[i]
        groups = optimizer.param_groups
        return (
            self._are_adam[i]
            and self._trainers[i].fused_step_unavailable_reason is None
            and len(groups) == 1
            and not groups[0]["amsgrad"]
            and not isinstance(groups[0]["lr"], Tensor)
            and not is_observed(optimizer)
        )

    def _adopt(self, i: int) -> bool:
        """Move member *i*'s state to the stacks; False before its first step, which makes it."""
        state = self._optimizers[i].state
        if self._sources[i] is not state:
            states = [cast("dict[str, Any]", state.get(p)) for p in self._parameters.own(i)]
            if not all(states):
                return False
            self._sources[i], self._states[i] = state, states
        states = self._states[i]
        tensors = [tensor for parameter_state in states for tensor in _tensors_of(parameter_state)]
        if not all(map(is_, tensors, self._own[i])):
            for stacked, value in zip(self._own[i], tensors, strict=True):
                if stacked is not value:
                    stacked.copy_(value)
            places = product(states, _STATE)
            for stacked, (parameter_state, name) in zip(self._own[i], places, strict=True):
                parameter_state[name] = stacked
        return True

    def release(self, i: int) -> None:
        """Give member *i* moments of its own."""
        for state in self._states[i]:
            state.update({name: state[name].clone() for name in _STATE})
        self._sources[i], self._states[i], self._all_states = None, [], []

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
        if any(divisor != 1.0 for divisor in divisor_G.tolist()):  # 1 changes nothing
            for gradient in gradients:
                gradient.div_(divisor_G.view(-1, *[1] * (gradient.dim() - 1)))
        alike: dict[tuple[object, ...], list[int]] = {}
        last, same = None, list[int]()
        for row in rows:
            optimizer = self._optimizers[members[row]]
            vars(optimizer)[CALLED] = True
            if (settings := _hyperparameters(optimizer)) != last:  # quicker than to hash them
                last, same = settings, alike.setdefault(settings, [])
            same.append(row)
        for same in alike.values():
            self._apply(members, same, gradients)

    def _apply(
        self, members: Sequence[int], rows: Sequence[int], gradients: Sequence[Tensor]
    ) -> None:
        """Step members of equal hyperparameters."""
        count = len(self._trainers)
        wholes: list[int] = []  # parameters whose stacks are stepped as wholes
        if len(rows) < count:
            for row in rows:
                self._steps_FP[members[row]] += 1.0
        else:
            self._steps_FP += 1.0
            first, *others = self._steps_FP.flatten().tolist()
            if others.count(first) == len(others):
                wholes = [k for k, n in enumerate(self._sizes) if elementwise_agrees(n, count)]
        (firsts, seconds), steps = self._moments, self._step_slices
        calls = [
            (self._parameters.stacks[k], gradients[k], firsts[k], seconds[k], steps[0][k])
            for k in wholes
        ]
        for k in sorted({*range(len(gradients))}.difference(wholes)):
            slices = (self._parameters.slices[k], self._slices[0][k], self._slices[1][k])
            of_row = gradients[k].unbind()
            for row in rows:
                i = members[row]
                parameter, first, second = (stack_slices[i] for stack_slices in slices)
                calls.append((parameter, of_row[row], first, second, steps[i][k]))
        optimizer = self._optimizers[members[rows[0]]]
        lists = (list(tensors) for tensors in zip(*calls, strict=True))
        adam_kernel(optimizer, optimizer.param_groups[0], *lists)


def _hyperparameters(optimizer: torch.optim.Optimizer) -> tuple[object, ...]:
    group = optimizer.param_groups[0]
    return (
        type(optimizer),
        group.get("decoupled_weight_decay"),
        *_hyperparameters_of(group),
    )
