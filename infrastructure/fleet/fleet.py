"""Several trainers stepped together: one pass over stacked models, every decision per member.

Each member is an `FP16Trainer` of its own: precision, loss scale, growth tracker, counters,
optimizer, learning-rate schedule and checkpoints stay with it. A fleet only computes the forward
and the backward pass, the norms and Adam's kernel for many members at once, and only in ways that
give every member the bits of a training of its own.

Shapes: G members that are stepped together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import structlog
import torch
from torch import Tensor

from infrastructure.agent_contract import Forward
from infrastructure.agent_contract.training_job import Batch
from infrastructure.fleet.adam import StackedAdam
from infrastructure.fleet.forms import Call, NotStackableError, StackedForm
from infrastructure.fleet.parameters import StackedParameters
from infrastructure.fleet.stackable import stack_key, stacked_form
from infrastructure.training import FP16Trainer, Precision
from infrastructure.training.precision import checked_loss

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetMember:
    """What takes part in a fleet.

    Attributes:
        trainer: Trainer of the member; use it between steps as if it were alone.
        loss: Function from forward and batch to a scalar, float32. It is called twice per step:
            until it calls ``forward``, and with the output of the model. It may call ``forward``
            once.
        generator: CPU generator of all random numbers of the member's model and loss, in place of
            torch's global one; None if they use none.
    """

    trainer: FP16Trainer
    loss: Callable[[Forward, Batch], Tensor]
    generator: torch.Generator | None = None


@dataclass(slots=True)
class _Slot:
    name: str
    member: FleetMember
    form: StackedForm | None
    key: Hashable
    alone_reason: str | None
    index: int = 0  # place in the stacks
    draws_checked: bool = False


@dataclass(slots=True)
class _Turn:
    """One member's part in one step."""

    slot: _Slot
    batch: Batch
    call: Call
    random_state: Tensor | None
    group: tuple[Hashable, ...]
    loss: Tensor | None = None


@dataclass(slots=True)
class _Stacks:
    slots: list[_Slot]
    parameters: StackedParameters
    adam: StackedAdam


class Fleet:
    """Steps its members together where that gives the same bits, else one after the other.

    Members whose models have one shape are stacked; others train alone, and `alone` has the reason.
    Between two steps members may join and leave, and a member's trainer may be used as if it were
    alone: evaluated, saved, loaded, moved to another precision.
    """

    def __init__(self) -> None:
        self._slots: dict[str, _Slot] = {}
        self._stacks: dict[Hashable, _Stacks] = {}

    # Members, between two steps.

    def join(self, name: str, member: FleetMember) -> None:
        """Add a member.

        Raises:
            ValueError: The fleet has a member of this name.
        """
        if name in self._slots:
            raise ValueError(f"the fleet has a member {name!r}: let it leave first, or use a name")
        slot = self._slots[name] = _new_slot(name, member)
        self._unstack(slot.key)

    def leave(self, name: str) -> FleetMember:
        """Remove a member; its trainer keeps what it has learned, in memory of its own.

        Raises:
            KeyError: The fleet has no member of this name.
        """
        slot = self._slots[name]
        self._unstack(slot.key)
        return self._slots.pop(name).member

    @property
    def members(self) -> Mapping[str, FleetMember]:
        """Members by name."""
        return {name: slot.member for name, slot in self._slots.items()}

    @property
    def alone(self) -> Mapping[str, str]:
        """Reason why a member trains alone, by name; members that are stacked are missing."""
        reasons = {}
        for name, slot in self._slots.items():
            if slot.alone_reason is not None:
                reasons[name] = slot.alone_reason
            elif len(self._of_key(slot.key)) < 2:
                reasons[name] = "no other member's model has its shape"
        return reasons

    def _of_key(self, key: Hashable) -> list[_Slot]:
        slots = self._slots.values()
        return [slot for slot in slots if slot.key == key and slot.alone_reason is None]

    def _unstack(self, key: Hashable) -> None:
        stacks = self._stacks.pop(key, None)
        if stacks is not None:
            for slot in stacks.slots:
                stacks.adam.release(slot.index)
                stacks.parameters.release(slot.index)

    def _stack(self, key: Hashable) -> _Stacks | None:
        """The stacks of the members of one shape; None where there is only one such member."""
        if key not in self._stacks:
            slots = self._of_key(key)
            if len(slots) < 2:
                return None
            for i, slot in enumerate(slots):
                slot.index = i
            trainers = [slot.member.trainer for slot in slots]
            parameters = StackedParameters(trainers)
            adam = StackedAdam(trainers, parameters)
            self._stacks[key] = _Stacks(slots=slots, parameters=parameters, adam=adam)
        return self._stacks[key]

    # The step.

    def step(self, batches: Mapping[str, Batch]) -> dict[str, Exception]:
        """Take one optimizer step of every member that has a batch.

        Args:
            batches: Batch of each member that is to take a step, by name.

        Returns:
            Errors by name. A member whose step raised has left the fleet; it attempted no step,
            and the others' steps are as if it had not been there.

        Raises:
            KeyError: The fleet has no member of a name.
        """
        failed: dict[str, Exception] = {}
        groups: dict[tuple[Hashable, ...], list[_Turn]] = {}
        alone: list[tuple[_Slot, Batch]] = []
        for name, batch in batches.items():
            slot = self._slots[name]
            turn = _turn(slot, batch)
            if turn is None:
                alone.append((slot, batch))
            else:
                groups.setdefault(turn.group, []).append(turn)
        for turns in groups.values():
            stacks = self._stack(turns[0].slot.key) if len(turns) > 1 else None
            if stacks is None:
                alone += [(turn.slot, turn.batch) for turn in turns]
            else:
                alone += _step_together(stacks, turns)
        for slot, batch in alone:
            try:
                _step_alone(slot, batch)
            except Exception as error:
                failed[slot.name] = error
        for name in failed:
            self.leave(name)
        return failed


def _new_slot(name: str, member: FleetMember) -> _Slot:
    form, key, reason = None, None, None
    try:
        form = stacked_form(member.trainer.model)
        key = stack_key(member.trainer, form)
        if form.draws and member.generator is None:
            reason = "its model draws random numbers, and the member has no generator"
    except NotStackableError as error:
        reason = error.reason
    return _Slot(name=name, member=member, form=form, key=key, alone_reason=reason)


def _turn(slot: _Slot, batch: Batch) -> _Turn | None:
    """Find out how the loss calls the model; None where only a step alone will do."""
    trainer, form = slot.member.trainer, slot.form
    if form is None or slot.alone_reason or trainer.model_cast_requested:
        return None
    recorder = _Recorder()
    try:
        slot.member.loss(recorder, batch)
    except _Called:
        pass
    except Exception:  # the step alone raises it again
        return None
    if recorder.arguments is None:
        return None
    try:
        signature = form.signature(trainer.model, recorder.arguments)
    except NotStackableError:
        return None
    generator = slot.member.generator
    state = None if generator is None else generator.get_state()
    training = trainer.model.training
    call = Call(arguments=recorder.arguments, training=training, generator=generator)
    group = (slot.key, trainer.precision, signature)
    return _Turn(slot=slot, batch=batch, call=call, random_state=state, group=group)


def _step_alone(slot: _Slot, batch: Batch) -> None:
    with _drawing_from(slot.member.generator):
        try:
            slot.member.trainer.train_batch(batch, slot.member.loss)
        except Exception:
            for parameter in slot.member.trainer.model.parameters():
                parameter.grad = None
            raise


def _step_together(stacks: _Stacks, turns: list[_Turn]) -> list[tuple[_Slot, Batch]]:
    """Step *turns* as one; return those that must be stepped alone, with nothing done."""
    trainers = [turn.slot.member.trainer for turn in turns]
    for turn in turns:
        stacks.parameters.adopt(turn.slot.index)
    leaves = stacks.parameters.leaves([turn.slot.index for turn in turns])
    scale_G = None
    if trainers[0].precision.scales_loss:
        scale_G = torch.stack([trainer.scale_in_force for trainer in trainers])
    try:
        _compute_losses(turns, dict(zip(stacks.parameters.names, leaves, strict=True)))
        loss_G = _backward(turns, scale_G)
    except Exception as error:  # of one of them, and the step alone finds out which
        log.warning("stacked_step_failed", members=[t.slot.name for t in turns], reason=str(error))
        loss_G = None
        for turn in turns:
            turn.loss = None
    redo = [turn for turn in turns if turn.loss is None]
    for turn in redo:
        if turn.random_state is not None and turn.call.generator is not None:
            turn.call.generator.set_state(turn.random_state)
    gradients = [_taken(leaf) for leaf in leaves]
    if loss_G is not None and len(redo) < len(turns):
        _finish(stacks, turns, gradients, loss_G, scale_G)
    return [(turn.slot, turn.batch) for turn in redo]


def _compute_losses(turns: list[_Turn], parameters: Mapping[str, Tensor]) -> None:
    slot = turns[0].slot
    trainer, form = slot.member.trainer, slot.form
    if form is None:
        return
    with _autocast(trainer, trainer.precision):
        outputs = form.forward(parameters, [turn.call for turn in turns])
    with _autocast(trainer, Precision.FP32):
        for turn, output in zip(turns, outputs, strict=True):
            turn.loss = _loss_of(turn, output)


def _autocast(trainer: FP16Trainer, precision: Precision) -> AbstractContextManager[object]:
    device, half = trainer.device.type, precision is not Precision.FP32
    if not half and not torch.is_autocast_enabled(device):
        return nullcontext()
    dtype = precision.compute if half else torch.bfloat16
    return torch.autocast(device, dtype=dtype, enabled=half)


def _backward(turns: list[_Turn], scale_G: Tensor | None) -> Tensor:
    """Backpropagate the losses, each times its member's scale; return them, detached."""
    zero = torch.zeros((), device=turns[0].slot.member.trainer.device)
    loss_G = torch.stack([zero if turn.loss is None else turn.loss for turn in turns])
    loss_G.backward(torch.ones_like(loss_G) if scale_G is None else scale_G)
    return loss_G.detach()


def _loss_of(turn: _Turn, output: Any) -> Tensor | None:
    """Loss of one member, or None where only a step alone will do, or will name the error."""
    slot, given = turn.slot, _Given(output)
    checks = not slot.draws_checked
    before = torch.get_rng_state() if checks else None
    try:
        loss = checked_loss(slot.member.loss(given, turn.batch))
    except _Called:
        slot.alone_reason = "its loss calls the model more than once"
        return None
    except Exception:
        return None
    if before is not None:
        slot.draws_checked = True
        if not torch.equal(before, torch.get_rng_state()):
            slot.alone_reason = "its loss draws random numbers"
            torch.set_rng_state(before)
            return None
    return loss


def _finish(
    stacks: _Stacks,
    turns: list[_Turn],
    gradients: list[Tensor],
    loss_G: Tensor,
    scale_G: Tensor | None,
) -> None:
    """Attempt the optimizer step of every turn that has a loss; decisions are per member."""
    together = []
    for row, turn in enumerate(turns):
        if turn.loss is None:
            continue
        if stacks.adam.can_step(turn.slot.index):
            together.append(row)
            continue
        own = stacks.parameters.own(turn.slot.index)
        for parameter, gradient in zip(own, gradients, strict=True):
            parameter.grad = gradient[row]
        turn.slot.member.trainer.step_with_gradients(loss_G[row])
    if not together:
        return
    norms = [torch.linalg.vector_norm(each.flatten(1), dim=1) for each in gradients]
    norm_G = torch.linalg.vector_norm(torch.stack(norms, dim=1), dim=1)
    if scale_G is not None:
        norm_G = norm_G / scale_G
    total_G = norm_G + loss_G  # finite exactly if both are
    found_inf_G = total_G.sub_(total_G).ne_(0.0)  # x - x is NaN, or 0
    skipped = found_inf_G.tolist()
    rows = [row for row in together if not skipped[row]]
    members = [turn.slot.index for turn in turns]
    stacks.adam.step(members, rows, gradients, norm_G, scale_G)
    outcomes = list(zip(norm_G.unbind(), loss_G.unbind(), found_inf_G.unbind(), strict=True))
    for row in together:
        trainer = turns[row].slot.member.trainer
        norm, loss, found_inf = outcomes[row]
        trainer.update_loss_scale(loss, found_inf)
        trainer.count_step(norm, loss, skipped=found_inf)


def _taken(leaf: Tensor) -> Tensor:
    gradient = leaf.grad
    leaf.grad = None
    return torch.zeros_like(leaf) if gradient is None else gradient


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
    """A `Forward` that keeps the arguments of the first call and returns to the fleet."""

    def __init__(self) -> None:
        self.arguments: tuple[Any, ...] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        if not kwargs:
            self.arguments = args
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
