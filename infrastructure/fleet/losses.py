"""Losses that are computed for several members at once.

While a fleet finds out how a member's loss calls its model, ``forward`` returns a `PendingOutput`.
Where the loss returns a known function of it and of targets, the fleet need not call the loss
again: it computes that function for all members together. Any other operation on a pending output
raises, and the loss is called again with the output itself.

Shapes: F members, N rows, L labels.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from infrastructure.fleet.agreement import elementwise_agrees, random_numbers
from infrastructure.fleet.forms import Outputs


@dataclass(frozen=True, kw_only=True, slots=True)
class StackableLoss:
    """A loss that can be computed for several members at once.

    Attributes:
        alone: Function of a model's output and of targets by name to a scalar.
        stacked: The same function of stacks, output and targets with a first dimension F, to
            ``[F]``. A fleet tries it on random numbers and uses it where it gives the same bits.
        derivative: Function of the same stacks and of weights ``[F]`` to the losses ``[F]`` and
            the gradient of the weighted losses, for an output that is one tensor. It may write to
            the memory of the targets, but not to the output, which the model's derivative may
            read. None to let autograd find it.
    """

    alone: Callable[[Any, Mapping[str, Tensor]], Tensor]
    stacked: Callable[[Any, Mapping[str, Tensor]], Tensor]
    derivative: Callable[[Tensor, Mapping[str, Tensor], Tensor], tuple[Tensor, Tensor]] | None = (
        None
    )

    def __call__(self, output: Any, targets: Mapping[str, Tensor]) -> Tensor:
        """Return the loss ``[]``, float32."""
        if isinstance(output, PendingOutput):
            return cast("Tensor", PendingLoss(self, output, targets))
        return self.alone(output, targets)


class PendingOutput:
    """Stands for the output of a model that is not computed yet."""

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Tensor],
        _: object,
        args: tuple[Any, ...],
        options: Mapping[str, Any] | None = None,
    ) -> PendingLoss:
        """Called by functions of torch in place of their work.

        Raises:
            TypeError: *function* with these arguments is not a known loss.
        """
        known = _LOSSES_OF_TORCH.get(function)
        output, target = args if len(args) == 2 else (None, None)
        if (
            known is None
            or options != known.options
            or not isinstance(output, PendingOutput)
            or not isinstance(target, Tensor)
        ):
            raise TypeError(f"{function} of an output that is not computed yet")
        return PendingLoss(known.loss, output, {"": target})


@dataclass(slots=True, eq=False)  # not frozen: one is made for every loss of every step
class PendingLoss:
    """A known function of an output that is not computed yet, and of targets."""

    loss: StackableLoss
    output: PendingOutput
    targets: Mapping[str, Tensor]

    def signature(self) -> Hashable:
        """Equal for losses that are like each other."""
        targets = ((name, t.shape, t.dtype) for name, t in self.targets.items())
        return (self.loss, *targets)


def are_alike(pending: Sequence[PendingLoss]) -> bool:
    """Whether all of *pending* can be computed together."""
    loss, likes = pending[0].loss, pending[0].targets
    if any(
        pending_loss.loss is not loss or pending_loss.targets.keys() != likes.keys()
        for pending_loss in pending
    ):
        return False
    for name, like in likes.items():
        shape, dtype = like.shape, like.dtype
        for pending_loss in pending:
            target = pending_loss.targets[name]
            if (
                target.shape != shape
                or target.dtype != dtype
                or target.requires_grad
                or not target.is_contiguous()  # operations divide a view into other vectors
            ):
                return False
    return True


def stacked_loss(
    pending: Sequence[PendingLoss],
    raw_F: Tensor,
    structure: Callable[[Tensor], Any],
    weight_F: Tensor,
    memory: dict[str, Tensor],
) -> tuple[Tensor, Tensor]:
    """Compute *pending* losses, which have one signature, together.

    Args:
        raw_F: Raw outputs, a stack without gradient; see `Outputs`.
        structure: Function from raw outputs to those of the models.
        weight_F: Loss scales, float32.
        memory: Stacks of targets by name, which the next call writes over; empty before the first.

    Returns:
        The losses ``[F]`` without gradient, and the gradient of *raw_F*.
    """
    loss, targets = pending[0].loss, dict[str, Tensor]()
    for name, like in pending[0].targets.items():
        stack = memory.get(name)
        if stack is not None and (
            stack.shape != (len(pending), *like.shape) or stack.dtype != like.dtype
        ):
            stack = None
        rows = [pending_loss.targets[name] for pending_loss in pending]
        targets[name] = memory[name] = torch.stack(rows, out=stack)
    output = structure(raw_F)
    if loss.derivative is not None and output is raw_F:
        with torch.no_grad():
            return loss.derivative(output, targets, weight_F)
    leaf = raw_F.detach().requires_grad_()
    loss_F = loss.stacked(structure(leaf), targets)
    (gradient,) = torch.autograd.grad(loss_F, leaf, weight_F)
    return loss_F.detach(), gradient


def stacked_loss_agrees(pending: Sequence[PendingLoss], outputs: Outputs) -> bool:
    """Whether the stacked loss of such outputs and targets gives the bits of each loss alone.

    Tried on random outputs. Reads the device. False also where the loss raises: alone, it names its
    member.
    """
    like, structure = outputs.stack(), outputs.structure
    parts = structure(like)
    leaves = parts.values() if isinstance(parts, Mapping) else [parts]
    if not all(elementwise_agrees(leaf[0].numel(), len(like)) for leaf in leaves):
        return False
    generator = random_numbers(like.device)
    raw = torch.randn(like.shape, generator=generator, device=like.device)
    weights = torch.randn(len(like), generator=generator, device=like.device)
    try:
        loss_F, gradient_F = stacked_loss(pending, raw, structure, weights, {})
        for i, pending_loss in enumerate(pending):
            leaf = raw[i].clone().requires_grad_()
            loss = pending_loss.loss.alone(structure(leaf), pending_loss.targets)
            (gradient,) = torch.autograd.grad(loss, leaf, weights[i].clone())
            if not (torch.equal(loss, loss_F[i]) and torch.equal(gradient, gradient_F[i])):
                return False
    except Exception:  # of any kind: the loss is the author's
        return False
    return True


def mean_of_each(value_F: Tensor) -> Tensor:
    """Mean of each slice, ``[F]``: as ``mean()`` of a tensor of its own."""
    return value_F.flatten(1).mean(1)


def cross_entropy_of_each(logits_FNL: Tensor, labels_FN: Tensor) -> Tensor:
    """``functional.cross_entropy`` of each slice, ``[F]``."""
    log_probs_FNL = functional.log_softmax(logits_FNL, 2)
    pairs = zip(log_probs_FNL.unbind(), labels_FN.unbind(), strict=True)
    return torch.stack([functional.nll_loss(log_probs, labels) for log_probs, labels in pairs])


def _squared_error_of_each(output_F: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
    return mean_of_each((output_F - targets[""]).square())


def _squared_error_derivative(
    output_F: Tensor, targets: Mapping[str, Tensor], weight_F: Tensor
) -> tuple[Tensor, Tensor]:
    """``2 / n * (output - target) * weight``, rounded as by torch's ``mse_loss_backward``."""
    target_F = targets[""]
    if target_F.shape != output_F.shape:
        raise ValueError(f"targets {list(target_F.shape)} of outputs {list(output_F.shape)}")
    error_F = torch.sub(output_F, target_F, out=target_F)
    loss_F = mean_of_each(error_F.square())
    weight_F = weight_F.view(-1, *[1] * (output_F.dim() - 1))
    return loss_F, error_F.mul_(2.0 / output_F[0].numel()).mul_(weight_F)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    """A loss of torch, and all options as torch passes them on where none was chosen."""

    loss: StackableLoss
    options: Mapping[str, Any]


_UNCHOSEN = {"weight": None, "size_average": None, "reduce": None, "reduction": "mean"}


_LOSSES_OF_TORCH: Mapping[Callable[..., Tensor], _Known] = {
    functional.mse_loss: _Known(
        loss=StackableLoss(
            alone=lambda output, targets: functional.mse_loss(output, targets[""]),
            stacked=_squared_error_of_each,
            derivative=_squared_error_derivative,
        ),
        options=_UNCHOSEN,
    ),
    functional.cross_entropy: _Known(
        loss=StackableLoss(
            alone=lambda output, targets: functional.cross_entropy(output, targets[""]),
            stacked=lambda output, targets: cross_entropy_of_each(output, targets[""]),
        ),
        options={**_UNCHOSEN, "ignore_index": -100, "label_smoothing": 0.0},
    ),
}
