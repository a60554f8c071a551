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

from infrastructure.fleet.agreement import elementwise_agrees, runs_agree
from infrastructure.fleet.forms import Outputs


@dataclass(frozen=True, kw_only=True, slots=True)
class StackableLoss:
    """A loss that can be computed for several members at once.

    Attributes:
        alone: Function of a model's output and of targets by name to a scalar.
        stacked: The same function of stacks, output and targets with a first dimension F, to
            ``[F]``. A fleet tries it on random numbers and uses it where it gives the same bits.
    """

    alone: Callable[[Any, Mapping[str, Tensor]], Tensor]
    stacked: Callable[[Any, Mapping[str, Tensor]], Tensor]

    def __call__(self, output: Any, targets: Mapping[str, Tensor]) -> Tensor:
        """Return the loss ``[]``, float32."""
        if isinstance(output, PendingOutput):
            return cast("Tensor", PendingLoss(loss=self, output=output, targets=targets))
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
        output, target = args[:2] if len(args) > 1 else (None, None)
        chosen = {name: value for name, value in (options or {}).items() if value is not None}
        known = _LOSSES_OF_TORCH.get(function)
        if (
            known is None
            or chosen != known.options
            or not isinstance(output, PendingOutput)
            or not isinstance(target, Tensor)
            or any(each is not None for each in args[2:])
        ):
            raise TypeError(f"{function} of an output that is not computed yet")
        return PendingLoss(loss=known.loss, output=output, targets={"": target})


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PendingLoss:
    """A known function of an output that is not computed yet, and of targets."""

    loss: StackableLoss
    output: PendingOutput
    targets: Mapping[str, Tensor]

    def signature(self) -> Hashable:
        """Equal for losses that can be computed together; None where there is no such loss."""
        if any(not t.is_contiguous() or t.requires_grad for t in self.targets.values()):
            return None
        targets = ((name, t.shape, t.dtype) for name, t in self.targets.items())
        return (self.loss, *targets)


def stacked_loss_agrees(pending: Sequence[PendingLoss], outputs: Outputs) -> bool:
    """Whether the stacked loss of such outputs and targets gives the bits of each loss alone.

    Tried on random outputs. Reads the device. False also where the loss raises: alone, it names its
    member.
    """
    loss, names = pending[0].loss, list(pending[0].targets)
    raw, structure = outputs.stack(), outputs.structure
    parts = structure(raw)
    leaves = parts.values() if isinstance(parts, Mapping) else [parts]
    if not all(elementwise_agrees(leaf[0].numel(), len(raw)) for leaf in leaves):
        return False

    def of(function: Callable[[Any, Mapping[str, Tensor]], Tensor]) -> Callable[..., Tensor]:
        return lambda own, *given: function(structure(own), dict(zip(names, given, strict=True)))

    try:
        return runs_agree(
            of(loss.stacked),
            of(loss.alone),
            [raw.shape[1:]],
            members=len(raw),
            device=raw.device,
            given=[torch.nan_to_num(each) for each in stacked_targets(pending).values()],
        )
    except Exception:  # of any kind: the loss is the author's
        return False


def stacked_targets(pending: Sequence[PendingLoss]) -> dict[str, Tensor]:
    """Targets of all *pending* losses, which have one signature, as stacks."""
    names = pending[0].targets
    return {name: torch.stack([each.targets[name] for each in pending]) for name in names}


def mean_of_each(value_F: Tensor) -> Tensor:
    """Mean of each slice, ``[F]``: as ``mean()`` of a tensor of its own."""
    return value_F.flatten(1).mean(1)


def cross_entropy_of_each(logits_FNL: Tensor, labels_FN: Tensor) -> Tensor:
    """``functional.cross_entropy`` of each slice, ``[F]``."""
    log_probs_FNL = functional.log_softmax(logits_FNL, 2)
    pairs = zip(log_probs_FNL.unbind(), labels_FN.unbind(), strict=True)
    return torch.stack([functional.nll_loss(log_probs, labels) for log_probs, labels in pairs])


def _squared_error_of_each(output_F: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
    error_F = functional.mse_loss(output_F, targets[""], reduction="none")
    return mean_of_each(error_F)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    loss: StackableLoss
    options: Mapping[str, Any]


_LOSSES_OF_TORCH: Mapping[Callable[..., Tensor], _Known] = {
    functional.mse_loss: _Known(
        loss=StackableLoss(
            alone=lambda output, targets: functional.mse_loss(output, targets[""]),
            stacked=_squared_error_of_each,
        ),
        options={"reduction": "mean"},
    ),
    functional.cross_entropy: _Known(
        loss=StackableLoss(
            alone=lambda output, targets: functional.cross_entropy(output, targets[""]),
            stacked=lambda output, targets: cross_entropy_of_each(output, targets[""]),
        ),
        options={"reduction": "mean", "ignore_index": -100, "label_smoothing": 0.0},
    ),
}
