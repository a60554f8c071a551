"""One member's part in one step: how its loss calls the model, and the step alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from infrastructure.agent_contract.training_job import Batch
from infrastructure.fleet.forms import Call, NotStackableError
from infrastructure.fleet.losses import PendingLoss, PendingOutput
from infrastructure.fleet.members import Slot
from infrastructure.training.precision import checked_loss

_DRAWS = "its loss draws random numbers"


@dataclass(slots=True)
class Turn:
    """One member's part in one step."""

    slot: Slot
    batch: Batch
    call: Call
    random_state: Tensor | None
    group: tuple[Hashable, ...]
    pending: PendingLoss | None
    is_alone: bool = False  # only a step alone will do, or will name the error


def begin_turn(slot: Slot, batch: Batch, has_drawn: Callable[[], bool] | None) -> Turn | None:
    """Find out how the loss calls the model; None where only a step alone will do."""
    trainer, form = slot.member.trainer, slot.form
    if form is None or slot.alone_reason or trainer.model_cast_requested:
        return None
    recorder, pending = _Recorder(may_return=slot.loss_is_known is not False), None
    try:
        result: object = slot.member.loss(recorder, batch)
        if isinstance(result, PendingLoss) and result.output is recorder.output:
            pending = result
    except (Exception, SystemExit):  # noqa: S110 of the output that is not computed yet; a step alone raises others
        pass
    if has_drawn is not None and has_drawn():
        slot.alone_reason = _DRAWS
        return None
    if recorder.arguments is None:
        return None
    if pending is None and slot.loss_is_known is None:
        slot.loss_is_known = False
    try:
        signature = form.signature(trainer.model, recorder.arguments)
    except NotStackableError:
        return None
    generator = slot.member.generator
    state = generator.get_state() if form.draws and generator is not None else None
    training = trainer.model.training
    call = Call(arguments=recorder.arguments, training=training, generator=generator)
    group = (slot.key, trainer.precision, signature)
    return Turn(slot=slot, batch=batch, call=call, random_state=state, group=group, pending=pending)


def loss_of(turn: Turn, output: Any, has_drawn: Callable[[], bool] | None) -> Tensor | None:
    """Loss of one member; None where only a step alone will do."""
    slot, given = turn.slot, _Given(output)
    try:
        loss = checked_loss(slot.member.loss(given, turn.batch))
    except (Exception, SystemExit) as error:
        if isinstance(error, _Called):
            slot.alone_reason = "its loss calls the model more than once"
        turn.is_alone = True
        return None
    if has_drawn is not None and has_drawn():
        slot.alone_reason = _DRAWS
        turn.is_alone = True
        return None
    if slot.loss_is_known is None and turn.pending is not None and loss.isfinite():
        with torch.no_grad():
            known = turn.pending.loss(output, turn.pending.targets)
        slot.loss_is_known = torch.equal(loss, known)
    return loss


def step_alone(slot: Slot, batch: Batch) -> None:
    """Take a step of one member by itself; one that raises leaves no gradients behind."""
    member = slot.member
    try:
        with _drawing_from(member.generator):
            member.trainer.train_batch(batch, member.loss)
    except (Exception, SystemExit):
        for parameter in member.trainer.model.parameters():
            parameter.grad = None
        raise


@contextmanager
def _drawing_from(generator: torch.Generator | None) -> Iterator[None]:
    """Let torch's global CPU generator be *generator* inside the block."""
    if generator is None:
        yield
        return
    before = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.get_rng_state())
        torch.set_rng_state(before)


class _Called(Exception):  # noqa: N818 not an error
    """The loss has called its model."""


class _Recorder:
    """A `Forward` that keeps the arguments of the first call.

    Args:
        may_return: Whether the call returns a pending output; else it raises.
    """

    __slots__ = ("_may_return", "arguments", "output")

    def __init__(self, *, may_return: bool) -> None:
        self._may_return = may_return
        self.arguments: tuple[Any, ...] | None = None
        self.output: PendingOutput | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> PendingOutput:
        if self.output is None and not kwargs:
            self.arguments = args
            if self._may_return:
                self.output = PendingOutput()
                return self.output
        raise _Called

    def method(self, *_: Any, **__: Any) -> NoReturn:
        raise _Called


class _Given:
    """A `Forward` that returns, once, what was computed with the others."""

    def __init__(self, output: Any) -> None:
        self._output, self._is_used = output, False

    def __call__(self, *_: Any, **__: Any) -> Any:
        if self._is_used:
            raise _Called
        self._is_used = True
        return self._output

    def method(self, *_: Any, **__: Any) -> NoReturn:
        raise _Called
