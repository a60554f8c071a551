"""Several trainers stepped together: one pass over stacked models, every decision per member.

Each member is an `FP16Trainer` of its own: precision, loss scale, growth tracker, counters,
optimizer, learning-rate schedule and checkpoints stay with it. A fleet only computes the forward
and the backward pass, the norms and Adam's kernel for many members at once, and only in ways that
give every member the bits of a training of its own.

Shapes: G members that are stepped together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, NoReturn, TypeAlias, cast

import structlog
import torch
from torch import Tensor

from infrastructure.agent_contract import Forward
from infrastructure.agent_contract.training_job import Batch
from infrastructure.fleet.adam import StackedAdam
from infrastructure.fleet.forms import Call, NotStackableError, Outputs, StackedForm
from infrastructure.fleet.losses import (
    PendingLoss,
    PendingOutput,
    are_alike,
    stacked_loss,
    stacked_loss_agrees,
)
from infrastructure.fleet.parameters import StackedParameters
from infrastructure.fleet.random_states import DrawDetector, RandomStates
from infrastructure.fleet.stackable import stack_key, stacked_form
from infrastructure.training import FP16Trainer, Precision
from infrastructure.training.precision import checked_loss

log = structlog.get_logger()

StepError: TypeAlias = Exception | SystemExit
"""What costs only the member that raised it: also a job that ends the process."""

_DRAWS = "its loss draws random numbers"


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
        step_alone: Takes a step of the member by itself, with all generators that its loss may draw
            from; None for ``trainer.train_batch`` with *generator*.
    """

    trainer: FP16Trainer
    loss: Callable[[Forward, Batch], Tensor]
    generator: torch.Generator | None = None
    step_alone: Callable[[Batch], None] | None = None


@dataclass(slots=True)
class _Slot:
    name: str
    member: FleetMember
    form: StackedForm | None
    key: int | None  # number of its shape; None where it has none
    alone_reason: str | None
    index: int = 0  # place in the stacks
    is_checked: bool = False
    loss_is_known: bool | None = None  # whether a pending loss is the loss; None before its check


@dataclass(slots=True)
class _Turn:
    """One member's part in one step."""

    slot: _Slot
    batch: Batch
    call: Call
    random_state: Tensor | None
    group: tuple[Hashable, ...]
    pending: PendingLoss | None
    is_alone: bool = False  # only a step alone will do, or will name the error


@dataclass(slots=True)
class _Stacks:
    slots: list[_Slot]
    parameters: StackedParameters
    adam: StackedAdam
    agreements: dict[Hashable, bool]  # whether stacked losses agree
    ones: Tensor  # float32 [F]
    failure_is_logged: bool = False


class Fleet:
    """Steps its members together where that gives the same bits, else one after the other.

    Members whose models have one shape are stacked; others train alone, and `alone` has the reason.
    Between two steps members may join and leave, and a member's trainer may be used as if it were
    alone: evaluated, saved, loaded, moved to another precision.
    """

    def __init__(self) -> None:
        self._slots: dict[str, _Slot] = {}
        self._shapes: dict[Hashable, int] = {}  # numbers of the members' shapes: quick to hash
        self._stacks: dict[int | None, _Stacks] = {}
        self._caller, self._draws = RandomStates(), DrawDetector()

    # Members, between two steps.

    def join(self, name: str, member: FleetMember) -> None:
        """Add a member.

        Raises:
            ValueError: The fleet has a member of this name.
        """
        if name in self._slots:
            raise ValueError(f"the fleet has a member {name!r}: let it leave first, or use a name")
        slot = self._slots[name] = self._new_slot(name, member)
        self._unstack(slot.key)

    def leave(self, name: str) -> FleetMember:
        """Remove a member; its trainer keeps what it has learned, in memory of its own.

        Raises:
            KeyError: The fleet has no member of this name.
        """
        slot = self._slots[name]
        self._unstack(slot.key)
        return self._slots.pop(name).member

    def check_again(self, name: str) -> None:
        """Let a member train alone from now on if its model or optimizer is no longer stackable.

        Parameters may have been frozen since it joined, or modules replaced.

        Raises:
            KeyError: The fleet has no member of this name.
        """
        slot = self._slots[name]
        now = self._new_slot(name, slot.member)
        if slot.alone_reason is None and now.key != slot.key:
            self._unstack(slot.key)
            slot.alone_reason = now.alone_reason or "its model has changed since it joined"

    @property
    def members(self) -> Mapping[str, FleetMember]:
        """Members by name."""
        return {name: slot.member for name, slot in self._slots.items()}

    @property
    def alone(self) -> Mapping[str, str]:
        """Reason why a member trains alone, by name; members that are stacked are missing."""
        reasons = {}
        groups = {name for group in self.groups for name in group}
        for name, slot in self._slots.items():
            if slot.alone_reason is not None:
                reasons[name] = slot.alone_reason
            elif name in groups:
                continue
            elif len(self._of_key(slot.key)) < 2:
                reasons[name] = "no other member's model has its shape"
            else:
                precision = slot.member.trainer.precision.value
                reasons[name] = f"no other member's model of its shape trains in {precision}"
        return reasons

    @property
    def groups(self) -> list[list[str]]:
        """Names of the members stacked with each other, for every shape and precision."""
        names: dict[tuple[int | None, Precision], list[str]] = {}
        for name, slot in self._slots.items():
            if slot.alone_reason is None:
                key = (slot.key, slot.member.trainer.precision)
                names.setdefault(key, []).append(name)
        return [group for group in names.values() if len(group) > 1]

    def _new_slot(self, name: str, member: FleetMember) -> _Slot:
        form, key, reason = None, None, None
        try:
            form = stacked_form(member.trainer.model)
            shape = stack_key(member.trainer, form)
            key = self._shapes.setdefault(shape, len(self._shapes))
            if form.draws and member.generator is None:
                reason = "its model draws random numbers, and the member has no generator"
            if form.draws and member.trainer.device.type != "cpu":
                reason = "its model draws random numbers on another device than the CPU"
        except NotStackableError as error:
            reason = error.reason
        return _Slot(name=name, member=member, form=form, key=key, alone_reason=reason)

    def _of_key(self, key: int | None) -> list[_Slot]:
        slots = self._slots.values()
        return [slot for slot in slots if slot.key == key and slot.alone_reason is None]

    def _unstack(self, key: int | None) -> None:
        stacks = self._stacks.pop(key, None)
        if stacks is not None:
            for slot in stacks.slots:
                stacks.adam.release(slot.index)
                stacks.parameters.release(slot.index)

    def _stack(self, key: int | None) -> _Stacks | None:
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
            ones = torch.ones(len(slots), device=trainers[0].device)
            self._stacks[key] = _Stacks(
                slots=slots, parameters=parameters, adam=adam, agreements={}, ones=ones
            )
        return self._stacks[key]

    # The step.

    def step(self, batches: Mapping[str, Batch]) -> dict[str, StepError]:
        """Take one optimizer step of every member that has a batch.

        Args:
            batches: Batch of each member that is to take a step, by name.

        Returns:
            Errors by name. A member whose step raised has left the fleet; it attempted no step,
            and the others' steps are as if it had not been there.

        Raises:
            KeyError: The fleet has no member of a name.
        """
        failed: dict[str, StepError] = {}
        with self._caller.kept():
            alone = self._step_stacked(batches)
        for slot, batch in alone:
            try:
                _step_alone(slot, batch)
            except (Exception, SystemExit) as error:
                failed[slot.name] = error
        for name in failed:
            self.leave(name)
        return failed

    def _step_stacked(self, batches: Mapping[str, Batch]) -> list[tuple[_Slot, Batch]]:
        """Step those together that can be; return the others."""
        draws = self._draws
        draws.enter()
        alone: list[tuple[_Slot, Batch]] = []
        groups: dict[tuple[Hashable, ...], list[_Turn]] = {}
        slots = {name: self._slots[name] for name in batches}
        check = draws.found if any(not slot.is_checked for slot in slots.values()) else None
        for name, batch in batches.items():
            slot = slots[name]
            turn = _turn(slot, batch, check)
            if turn is None:
                alone.append((slot, batch))
            else:
                groups.setdefault(turn.group, []).append(turn)
        if draws.found():
            for turn in chain(*groups.values()):
                turn.slot.is_checked = False  # the next step finds out whose loss it was
            return [(slots[name], batch) for name, batch in batches.items()]
        for turns in groups.values():
            stacks = self._stack(turns[0].slot.key) if len(turns) > 1 else None
            if stacks is None:
                alone += [(turn.slot, turn.batch) for turn in turns]
            else:
                turns.sort(key=lambda turn: turn.slot.index)  # the order of the stacks
                alone += _step_together(stacks, turns, draws)
        return alone


def _turn(slot: _Slot, batch: Batch, has_drawn: Callable[[], bool] | None) -> _Turn | None:
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
    return _Turn(
        slot=slot, batch=batch, call=call, random_state=state, group=group, pending=pending
    )


def _step_alone(slot: _Slot, batch: Batch) -> None:
    member = slot.member
    try:
        if member.step_alone is not None:
            member.step_alone(batch)
            return
        with _drawing_from(member.generator):
            member.trainer.train_batch(batch, member.loss)
    except (Exception, SystemExit):
        for parameter in member.trainer.model.parameters():
            parameter.grad = None
        raise


def _step_together(
    stacks: _Stacks, turns: list[_Turn], draws: DrawDetector
) -> list[tuple[_Slot, Batch]]:
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


def _log_failure(stacks: _Stacks, turns: list[_Turn], error: BaseException) -> None:
    """Log the first failure of *stacks*; it may come back in every step."""
    if not stacks.failure_is_logged:
        stacks.failure_is_logged, members = True, [turn.slot.name for turn in turns]
        log.warning("stacked_step_failed", members=members, reason=repr(error))


def _differentiate(
    stacks: _Stacks, turns: Sequence[_Turn], scale_G: Tensor | None, draws: DrawDetector
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
            loss_G, raw_gradient = stacked_loss(pending, raw, outputs.structure, weight_G)
    if not pending:
        loss_G, raw_gradient = _losses_of_each(turns, outputs, weight_G, draws)
    gradients = outputs.gradients(leaves, raw_gradient)
    return gradients, loss_G, not pending and draws.found()


def _losses_of_each(
    turns: Sequence[_Turn], outputs: Outputs, weight_G: Tensor, draws: DrawDetector
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
    leaves = [each.detach().requires_grad_() for each in raws]
    own = leaves[0].unbind() if is_stacked else [leaf.clone() for leaf in leaves]
    check = draws.found if any(not turn.slot.is_checked for turn in turns) else None
    with _autocast(turns[0].slot.member.trainer, Precision.FP32):
        pairs = zip(turns, map(outputs.structure, own), strict=True)
        losses = [_loss_of(turn, output, check) for turn, output in pairs]
        loss_G = torch.stack([zero if loss is None else loss for loss in losses])
    if loss_G.requires_grad:
        loss_G.backward(weight_G)
    found = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    return loss_G.detach(), found[0] if is_stacked else found


def _stackable(stacks: _Stacks, turns: Sequence[_Turn], outputs: Outputs) -> list[PendingLoss]:
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


def _loss_of(turn: _Turn, output: Any, has_drawn: Callable[[], bool] | None) -> Tensor | None:
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


def _check_parameters(stacks: _Stacks, turns: Sequence[_Turn]) -> None:
    """Let members train alone whose loss reaches the model's parameters by another way."""
    for turn in turns:
        if turn.is_alone or turn.slot.is_checked:
            continue
        turn.slot.is_checked = True
        own = stacks.parameters.own(turn.slot.index)
        if any(parameter.grad is not None for parameter in own):
            turn.slot.alone_reason = "its loss uses the model's parameters directly"
            turn.is_alone = True
            stacks.parameters.drop_gradients(turn.slot.index)


def _finish(
    stacks: _Stacks,
    turns: list[_Turn],
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
        own = stacks.parameters.own(members[row])
        for parameter, gradient in zip(own, gradients, strict=True):
            parameter.grad = gradient[row]
        turns[row].slot.member.trainer.step_with_gradients(loss_G[row])
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
    stacks.adam.step(members, rows, gradients, norm_G, scale_G)
    outcomes = list(zip(norm_G.unbind(), loss_G.unbind(), found_inf_G.unbind(), strict=True))
    for row in together:
        trainer = turns[row].slot.member.trainer
        norm, loss, found_inf = outcomes[row]
        if scale_G is not None:
            trainer.update_loss_scale(loss, found_inf)
        trainer.count_step(norm, loss, skipped=found_inf)


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
