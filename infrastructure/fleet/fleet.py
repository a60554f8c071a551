"""Several trainers stepped together: one pass over stacked models, every decision per member.

Each member is an `FP16Trainer` of its own: precision, loss scale, growth tracker, counters,
optimizer, learning-rate schedule and checkpoints stay with it. A fleet only computes the forward
and the backward pass, the norms and Adam's kernel for many members at once, and only in ways that
give every member the bits of a training of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import chain
from typing import TypeAlias

import torch

from infrastructure.agent_contract.training_job import Batch
from infrastructure.fleet.adam import StackedAdam
from infrastructure.fleet.forms import NotStackableError
from infrastructure.fleet.members import FleetMember, Slot
from infrastructure.fleet.parameters import StackedParameters
from infrastructure.fleet.random_states import DrawDetector
from infrastructure.fleet.stackable import stack_key, stacked_form
from infrastructure.fleet.stacked_step import Stacks, step_together
from infrastructure.fleet.turns import Turn, begin_turn, step_alone
from infrastructure.training import Precision

StepError: TypeAlias = Exception | SystemExit
"""What costs only the member that raised it: also a job that ends the process."""


class Fleet:
    """Steps its members together where that gives the same bits, else one after the other.

    Members whose models have one shape are stacked; others train alone, and `alone` has the reason.
    Between two steps members may join and leave, and a member's trainer may be used as if it were
    alone: evaluated, saved, loaded, moved to another precision.

    Args:
        members: Members to begin with, by name; see `join`.
    """

    def __init__(self, members: Mapping[str, FleetMember] | None = None) -> None:
        self._slots: dict[str, Slot] = {}
        self._shapes: dict[Hashable, int] = {}  # numbers of the members' shapes: quick to hash
        self._stacks: dict[int | None, Stacks] = {}
        self._draws = DrawDetector()
        for name, member in (members or {}).items():
            self.join(name, member)

    # Members, between two steps.

    def join(self, name: str, member: FleetMember) -> None:
        """Add a member.

        Raises:
            ValueError: The fleet has a member of this name.
        """
        if name in self._slots:
            raise ValueError(
                f"the fleet has a member {name!r}: let it leave first, or use another name"
            )
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

    def _new_slot(self, name: str, member: FleetMember) -> Slot:
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
        return Slot(name=name, member=member, form=form, key=key, alone_reason=reason)

    def _of_key(self, key: int | None) -> list[Slot]:
        slots = self._slots.values()
        return [slot for slot in slots if slot.key == key and slot.alone_reason is None]

    def _unstack(self, key: int | None) -> None:
        stacks = self._stacks.pop(key, None)
        if stacks is not None:
            for slot in stacks.slots:
                stacks.adam.release(slot.index)
                stacks.parameters.release(slot.index)

    def _stack(self, key: int | None) -> Stacks | None:
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
            self._stacks[key] = Stacks(
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
        alone = self._step_stacked(batches)
        for slot, batch in alone:
            try:
                step_alone(slot, batch)
            except (Exception, SystemExit) as error:
                failed[slot.name] = error
        for name in failed:
            self.leave(name)
        return failed

    def _step_stacked(self, batches: Mapping[str, Batch]) -> list[tuple[Slot, Batch]]:
        """Step those together that can be; return the others."""
        draws = self._draws
        draws.begin()
        alone: list[tuple[Slot, Batch]] = []
        groups: dict[tuple[Hashable, ...], list[Turn]] = {}
        like: list[Turn] = []
        slots = {name: self._slots[name] for name in batches}
        check = draws.found if any(not slot.is_checked for slot in slots.values()) else None
        for name, batch in batches.items():
            slot = slots[name]
            turn = begin_turn(slot, batch, check)
            if turn is None:
                alone.append((slot, batch))
                continue
            if not like or turn.group != like[0].group:  # quicker than to hash the group
                like = groups.setdefault(turn.group, [])
            like.append(turn)
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
                alone += step_together(stacks, turns, draws)
        return alone
