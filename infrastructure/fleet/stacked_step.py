"""One optimizer step of several members: the passes together, every decision per member.

Shapes: F members of a fleet's stacks, G members that are stepped together.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import structlog
import torch
from torch import Tensor

from infrastructure.agent_contract.training_job import Batch
from infrastructure.fleet.adam import StackedAdam
from infrastructure.fleet.forms import Outputs, StackedForm
from infrastructure.fleet.losses import (
    PendingLoss,
    are_alike,
    stacked_loss,
    stacked_loss_agrees,
)
from infrastructure.fleet.members import Slot
from infrastructure.fleet.parameters import StackedParameters
from infrastructure.fleet.random_states import DrawDetector
from infrastructure.fleet.turns import Turn, loss_of
from infrastructure.training import FP16Trainer, Precision

log = structlog.get_logger()


@dataclass(slots=True)
class Stacks:
    """What the members of one shape compute on."""

    slots: list[Slot]
    parameters: StackedParameters
    adam: StackedAdam
    agreements: dict[Hashable, bool]  # whether stacked losses agree
    ones: Tensor  # float32 [F]
    targets: dict[str, Tensor] = field(default_factory=dict)  # memory of the losses
    failure_is_logged: bool = False


def step_together(
    stacks: Stacks, turns: list[Turn], draws: DrawDetector
) -> list[tuple[Slot, Batch]]:
    """Step *turns* as one; return those that must be stepped alone, with nothing done."""
    trainers = [turn.slot.member.trainer for turn in turns]
    stacks.parameters.adopt([turn.slot.index for turn in turns])
    scale_G = None
    if trainers[0].precision.scales_loss:
        scale_G = torch.stack([trainer.scale_in_force for trainer in trainers])
    try:
        gradients, loss_G, has_drawn = _differentiate(stacks, turns, scale_G, draws)
    except (Exception, SystemExit) as error:  # of one of them, and the step alone finds out which
        _log_failure(stacks, turns, error)
        draws.found()
        for turn in turns:
            turn.is_alone = True
            stacks.parameters.drop_gradients(turn.slot.index)
    else:
        _check_parameters(stacks, turns)
        if has_drawn:
            for turn in turns:
                turn.is_alone, turn.slot.is_checked = True, False
        _finish(stacks, turns, gradients, loss_G, scale_G)
    alone = [turn for turn in turns if turn.is_alone]
    for turn in alone:
        if turn.random_state is not None and turn.call.generator is not None:
            turn.call.generator.set_state(turn.random_state)
    return [(turn.slot, turn.batch) for turn in alone]


def _log_failure(stacks: Stacks, turns: list[Turn], error: BaseException) -> None:
    """Log the first failure of *stacks*; it may come back in every step."""
    if not stacks.failure_is_logged:
        stacks.failure_is_logged, members = True, [turn.slot.name for turn in turns]
        log.warning("stacked_step_failed", members=members, reason=repr(error))


def _differentiate(
    stacks: Stacks, turns: Sequence[Turn], scale_G: Tensor | None, draws: DrawDetector
) -> tuple[list[Tensor], Tensor, bool]:
    """Gradients of all parameters, times the loss scales, and the losses ``[G]``.

    The last result is whether the members' losses drew random numbers.
    """
    leaves = stacks.parameters.leaves([turn.slot.index for turn in turns])
    slot, calls = turns[0].slot, [turn.call for turn in turns]
    trainer, form = slot.member.trainer, cast("StackedForm", slot.form)
    with _autocast(trainer, trainer.precision):
        outputs = form.forward(dict(zip(stacks.parameters.names, leaves, strict=True)), calls)
    weight_G = stacks.ones[: len(turns)] if scale_G is None else scale_G
    raw_gradient: Tensor | list[Tensor]
    with _autocast(trainer, Precision.FP32):
        pending = _stackable(stacks, turns, outputs)
        if pending:
            raw = outputs.stack()
            loss_G, raw_gradient = stacked_loss(
                pending, raw, outputs.structure, weight_G, stacks.targets
            )
    if not pending:
        loss_G, raw_gradient = _losses_of_each(turns, outputs, weight_G, draws)
    gradients = outputs.gradients(leaves, raw_gradient)
    return gradients, loss_G, not pending and draws.found()


def _losses_of_each(
    turns: Sequence[Turn], outputs: Outputs, weight_G: Tensor, draws: DrawDetector
) -> tuple[Tensor, Tensor | list[Tensor]]:
    """Compute and differentiate the losses one by one, 0 where only a step alone will do.

    Args:
        weight_G: Loss scales, float32.

    Returns:
        The losses ``[G]`` without gradient, and the gradient of the raw outputs, a stack or one
        tensor of each member, times the loss scales.
    """
    raw, zero = outputs.raw, weight_G.new_zeros(())
    is_stacked = isinstance(raw, Tensor)
    raws = [raw] if isinstance(raw, Tensor) else raw
    if outputs.backward is not None:  # a loss may keep what the next step writes over
        raws = [tensor.clone() for tensor in raws]
    leaves = [tensor.detach().requires_grad_() for tensor in raws]
    rows = leaves[0].unbind() if is_stacked else [leaf.clone() for leaf in leaves]
    check = draws.found if any(not turn.slot.is_checked for turn in turns) else None
    with _autocast(turns[0].slot.member.trainer, Precision.FP32):
        pairs = zip(turns, map(outputs.structure, rows), strict=True)
        losses = [loss_of(turn, output, check) for turn, output in pairs]
        loss_G = torch.stack([zero if loss is None else loss for loss in losses])
    if loss_G.requires_grad:
        loss_G.backward(weight_G)
    gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    return loss_G.detach(), gradients[0] if is_stacked else gradients


def _stackable(stacks: Stacks, turns: Sequence[Turn], outputs: Outputs) -> list[PendingLoss]:
    """The losses of *turns* if they can be computed together, else nothing."""
    pending = [turn.pending for turn in turns if turn.pending and turn.slot.loss_is_known]
    if len(pending) < len(turns):
        return []
    if not are_alike(pending):
        return []
    case = (len(turns), turns[0].group, pending[0].signature(), torch.get_num_threads())
    if case not in stacks.agreements:
        stacks.agreements[case] = stacked_loss_agrees(pending, outputs)
    return pending if stacks.agreements[case] else []


def _autocast(trainer: FP16Trainer, precision: Precision) -> AbstractContextManager[object]:
    device, half = trainer.device.type, precision is not Precision.FP32
    if not half and not torch.is_autocast_enabled(device):
        return nullcontext()
    dtype = precision.compute if half else torch.bfloat16
    return torch.autocast(device, dtype=dtype, enabled=half)


def _check_parameters(stacks: Stacks, turns: Sequence[Turn]) -> None:
    """Let members train alone whose loss reaches the model's parameters by another way."""
    for turn in turns:
        if turn.is_alone or turn.slot.is_checked:
            continue
        turn.slot.is_checked = True
        parameters = stacks.parameters.own(turn.slot.index)
        if any(parameter.grad is not None for parameter in parameters):
            turn.slot.alone_reason = "its loss uses the model's parameters directly"
            turn.is_alone = True
            stacks.parameters.drop_gradients(turn.slot.index)


def _finish(
    stacks: Stacks,
    turns: list[Turn],
    gradients: list[Tensor],
    loss_G: Tensor,
    scale_G: Tensor | None,
) -> None:
    """Attempt the optimizer step of every turn that has a loss; decisions are per member."""
    members = [turn.slot.index for turn in turns]
    ready = [row for row, turn in enumerate(turns) if not turn.is_alone]
    can_step = stacks.adam.can_step([members[row] for row in ready])
    together = [row for row, can in zip(ready, can_step, strict=True) if can]
    for row in ready if len(together) < len(ready) else ():
        if row in together:
            continue
        parameters = stacks.parameters.own(members[row])
        scaled = [gradient[row] for gradient in gradients]
        turns[row].slot.member.trainer.step(_KnownGradients.apply(loss_G[row], scaled, *parameters))
    if not together:
        return
    norms = [torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients]
    norm_G = torch.linalg.vector_norm(torch.stack(norms, dim=1), dim=1)
    if scale_G is not None:
        norm_G = norm_G / scale_G
    total_G = norm_G + loss_G  # finite exactly if both are
    found_inf_G = total_G.sub_(total_G).ne_(0.0)  # x - x is NaN, or 0
    skipped = found_inf_G.tolist()
    rows = [row for row in together if not skipped[row]]
    stacks.adam.step(members, rows, gradients, norm_G, scale_G)
    norms, losses = (values_G.unbind() for values_G in torch.stack((norm_G, loss_G)))
    found_inf = found_inf_G.unbind()
    for row in together:
        trainer = turns[row].slot.member.trainer
        trainer.update_loss_scale(losses[row], found_inf[row])
        trainer.count_step(norms[row], losses[row], skipped=found_inf[row])


class _KnownGradients(torch.autograd.Function):
    """A loss whose scaled gradients are known: `FP16Trainer.step` takes it as any other."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, scaled: Sequence[Tensor], *_parameters: Tensor) -> Tensor:
        """A copy of *loss*, float32 ``[]``."""
        ctx.scaled = scaled
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *_scale: Tensor) -> Any:
        """The gradients of the parameters, to which the loss scale has been applied already."""
        return None, None, *ctx.scaled
