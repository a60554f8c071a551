"""Trainings advanced in one process, in rounds of at most one step each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import torch

from infrastructure.fleet.fleet import Fleet, StepError
from infrastructure.fleet.gain import GainMeasurement
from infrastructure.fleet.members import FleetMember
from infrastructure.fleet.random_states import RandomStates
from infrastructure.training.loop import StepRequest, Steps, TrainingLoop

T = TypeVar("T")

MEASURED_FROM_STEPS = 200
"""Trainings with fewer steps to go are stepped together without a measurement.

The measurement's ten steps one after the other are then at most 5 % of a training's steps.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended(Generic[T]):
    """How a training ended.

    Attributes:
        result: Value of its generator; None if it raised.
        error: What its generator raised, or None.
    """

    result: T | None = None
    error: BaseException | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """How a training is stepped.

    Attributes:
        with_others: Other trainings that are stepped together with it; 0 if it is stepped alone.
        ratio: Time of one after the other divided by the time of together; None if not measured.
        reason: Both in words, and why.
    """

    with_others: int
    ratio: float | None
    reason: str


@dataclass(slots=True)
class _Member(Generic[T]):
    name: str
    steps: Steps[T]
    states: RandomStates
    request: StepRequest | None = None  # not taken yet
    loop: TrainingLoop | None = None  # that made the last request
    round: int = 0  # of that loop, as of the last request
    standing: Standing | None = None
    has_begun: bool = False

    def take(self) -> None:
        """Take the step that is asked for, alone."""
        if self.request is not None:
            with self.states.in_force():
                self.request.take()


class Trainings(Generic[T]):
    """Steps trainings together where that is faster and gives the same bits, else one by one.

    On a CPU every training gives the events, checkpoints and model of `train`, bit for bit, but for
    times: each has its own random states, precision and commands. A training that fails or ends
    leaves the others as they are.

    Args:
        tell: Function that is told of each training's `Standing`, and of every change of it.
    """

    def __init__(self, tell: Callable[[str, Standing], None] = lambda _name, _standing: None):
        self._tell = tell
        self._members: dict[str, _Member[T]] = {}
        self._fleet = Fleet()
        self._caller = RandomStates()
        self._measured: dict[tuple[str, ...], GainMeasurement | None] = {}
        self._standings_are_old = False

    def add(self, name: str, steps: Steps[T]) -> None:
        """Add a training, between two rounds.

        It begins with the global random states that are in force now, and has them to itself.

        Args:
            name: Name among these trainings.
            steps: What `training_steps` returns, or a generator around it.

        Raises:
            ValueError: There is a training of this name.
        """
        if name in self._members:
            raise ValueError(f"there is a training {name!r}: use another name")
        self._members[name] = _Member(name, steps, RandomStates.copied())

    def remove(self, name: str) -> None:
        """Close a training's generator, between two rounds, and forget it.

        Raises:
            KeyError: There is no training of this name.
            Exception: What the generator raised as it was closed.
        """
        member = self._members.pop(name)
        self._leave(member)
        with self._caller.kept(), member.states.in_force():
            member.steps.close()

    @property
    def standings(self) -> Mapping[str, Standing]:
        """How each training that has begun its steps is stepped, by name."""
        members = self._members.values()
        return {each.name: each.standing for each in members if each.standing is not None}

    def __len__(self) -> int:
        """Number of trainings that have not ended."""
        return len(self._members)

    def advance(self) -> dict[str, Ended[T]]:
        """Advance every training that is ready to its next step and take these steps.

        What a training does between two steps, such as an evaluation, keeps the others waiting. So
        of the trainings that have not begun, one gets ready for its first step in each round:
        those that have begun obey their commands meanwhile.

        Returns:
            The trainings that ended, by name.
        """
        ended: dict[str, Ended[T]] = {}
        with self._caller.kept():
            one_begins = False
            for member in list(self._members.values()):
                if member.request is not None or (one_begins and not member.has_begun):
                    continue
                one_begins |= not member.has_begun
                member.has_begun = True
                self._resume(member, member.steps.__next__, ended)
            errors = self._step()
            for member in list(self._members.values()):
                error = errors.get(member.name)
                if error is None:
                    member.request = None
                else:
                    self._leave(member)
                    self._resume(member, partial(member.steps.throw, error), ended)
        return ended

    def _resume(
        self, member: _Member[T], resume: Callable[[], StepRequest], ended: dict[str, Ended[T]]
    ) -> None:
        """Run *member* to its next request; join the fleet, or leave it."""
        try:
            with member.states.in_force():
                member.request = resume()
        except StopIteration as end:
            ended[member.name] = Ended(result=end.value)
        except (Exception, SystemExit) as error:
            ended[member.name] = Ended(error=error)
        if member.name in ended:
            del self._members[member.name]
            self._leave(member)
        elif member.request is not None and member.request.loop is not member.loop:
            self._leave(member)
            member.loop = loop = member.request.loop
            if loop.alone_reason is None:
                taking = FleetMember(
                    trainer=loop.trainer,
                    loss=loop.loss,
                    generator=member.states.torch,
                    step_alone=lambda _batch: member.take(),
                )
                self._fleet.join(member.name, taking)
            member.round, self._standings_are_old = loop.rounds_begun, True
        elif member.request is not None and member.request.loop.rounds_begun > member.round:
            member.round = member.request.loop.rounds_begun
            if member.name in self._fleet.members:
                self._fleet.check_again(member.name)

    def _leave(self, member: _Member[T]) -> None:
        member.loop, self._standings_are_old = None, True
        if member.name in self._fleet.members:
            self._fleet.leave(member.name)

    # The steps of a round.

    def _step(self) -> dict[str, StepError]:
        """Take every step that is asked for; return the errors by name."""
        if not all(member.has_begun for member in self._members.values()):
            return self._step_each(list(self._members))  # each that joins changes the groups
        groups = [tuple(group) for group in self._fleet.groups]
        if groups != list(self._measured):
            known = self._measured
            self._measured = {g: known[g] if g in known else self._begin(g) for g in groups}
            self._standings_are_old = True
        errors: dict[str, StepError] = {}
        for group, measurement in self._measured.items():
            if measurement is None or measurement.ratio is not None:
                errors |= self._step_group(group, measurement is None or measurement.step_together)
                continue
            device = self._device(group)
            begun = _now(device)
            errors |= self._step_group(group, measurement.step_together)
            measurement.record(_now(device) - begun)
            self._standings_are_old |= measurement.ratio is not None
        grouped = {name for group in groups for name in group}
        errors |= self._step_each([name for name in self._members if name not in grouped])
        if self._standings_are_old:
            self._standings_are_old = False
            self._update_standings()
        return errors

    def _step_group(self, group: Sequence[str], together: bool) -> dict[str, StepError]:
        if not together:
            return self._step_each(group)
        requests = {name: self._members[name].request for name in group}
        return self._fleet.step({n: each.batch for n, each in requests.items() if each is not None})

    def _begin(self, group: Sequence[str]) -> GainMeasurement | None:
        """The measurement of a new group; None where too few steps remain for it."""
        loops = [self._members[name].loop for name in group]
        left = [loop.remaining_steps for loop in loops if loop is not None]
        known = [steps for steps in left if steps is not None]
        return None if known and max(known) < MEASURED_FROM_STEPS else GainMeasurement()

    def _device(self, group: Sequence[str]) -> torch.device:
        loop = self._members[group[0]].loop
        return torch.device("cpu") if loop is None else loop.trainer.device

    def _step_each(self, names: Sequence[str]) -> dict[str, StepError]:
        errors: dict[str, StepError] = {}
        for name in names:
            try:
                self._members[name].take()
            except (Exception, SystemExit) as error:
                errors[name] = error
        return errors

    # What is told about them.

    def _update_standings(self) -> None:
        alone = self._fleet.alone
        groups = {name: group for group in self._measured for name in group}
        for member in self._members.values():
            if member.name in groups:
                group = groups[member.name]
                standing = _standing_of_group(len(group) - 1, self._measured[group])
            else:
                loop = member.loop
                reason = alone.get(member.name) or (loop and loop.alone_reason) or "its step failed"
                standing = Standing(with_others=0, ratio=None, reason=f"trains alone: {reason}")
            if standing != member.standing:
                member.standing = standing
                self._tell(member.name, standing)


def _standing_of_group(others: int, measurement: GainMeasurement | None) -> Standing:
    trainings = f"{others} other training{'s' if others > 1 else ''}"
    if measurement is None:
        reason = f"stepped together with {trainings}; too short to measure what this saves"
        return Standing(with_others=others, ratio=None, reason=reason)
    ratio = measurement.ratio
    if ratio is None:
        reason = f"stepped together with {trainings} while it is measured whether this is faster"
        return Standing(with_others=others, ratio=None, reason=reason)
    if measurement.step_together:
        reason = f"stepped together with {trainings}: {ratio:.2f} times as fast as one by one"
        return Standing(with_others=others, ratio=ratio, reason=reason)
    reason = f"trained one after the other: together with {trainings} {ratio:.2f} times as fast"
    return Standing(with_others=0, ratio=ratio, reason=reason)


def _now(device: torch.device) -> float:
    """Seconds of processor time; of the clock where a GPU must be waited for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()
