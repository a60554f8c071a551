"""What takes part in a fleet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from infrastructure.agent_contract import Forward
from infrastructure.agent_contract.training_job import Batch
from infrastructure.fleet.forms import StackedForm
from infrastructure.training import FP16Trainer


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetMember:
    """What takes part in a fleet.

    Attributes:
        trainer: Trainer of the member; use it between steps as if it were alone.
        loss: Function from forward and batch to a scalar, float32. It may call ``forward`` once.
            It is called twice per step: until it calls ``forward``, and with the output of the
            model. A loss that returns a `StackableLoss`, or torch's ``mse_loss`` or
            ``cross_entropy``, of the output and does no more with it is called once per step,
            with an output that is not computed yet.
        generator: CPU generator of all random numbers of the member's model and loss, in place of
            torch's global one; None if they use none.
    """

    trainer: FP16Trainer
    loss: Callable[[Forward, Batch], Tensor]
    generator: torch.Generator | None = None


@dataclass(slots=True)
class Slot:
    """A member's place in its fleet, and what the fleet knows of it.

    Attributes:
        name: Name in the fleet.
        member: The member.
        form: Stacked form of its model; None if it has none.
        key: Number of its shape; None if it has none.
        alone_reason: Why it trains alone; None if it may be stacked.
        index: Its row in the stacks of its shape.
        is_checked: Whether a step has shown that its loss draws no random numbers and reaches the
            model's parameters through ``forward`` alone.
        loss_is_known: Whether its loss is the `PendingLoss` that it returns; None before a step
            has shown it.
    """

    name: str
    member: FleetMember
    form: StackedForm | None
    key: int | None
    alone_reason: str | None
    index: int = 0
    is_checked: bool = False
    loss_is_known: bool | None = None
