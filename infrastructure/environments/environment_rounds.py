"""The rounds of a policy that acts in environments: steps of collection, then updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from infrastructure.agent_contract import RunContext
from infrastructure.agent_contract.agent import RecordedTransitions
from infrastructure.agent_contract.on_policy_job import Roles
from infrastructure.agent_contract.training_job import Batch
from infrastructure.environments.actions import (
    Act,
    check_state,
    checked_actions,
    in_type,
    name_of_function,
)
from infrastructure.environments.course import (
    ACTION,
    OBSERVATION,
    Array,
    Course,
    Place,
    Step,
    name_of,
)
from infrastructure.environments.memory import Memory
from infrastructure.environments.recorded_rounds import RecordedRounds, transitions_of
from infrastructure.environments.repetition import (
    NOT_DETERMINISTIC,
    Difference,
    environments_differ,
    repeated,
)
from infrastructure.trajectories import ReplayBuffer

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

    from infrastructure.agent_contract import Transition

_RESET, _ACT, _RANDOM, _SAMPLE = range(4)  # uses of the seed, each with numbers of its own


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundOptions:
    """Size of the rounds.

    Attributes:
        steps: Steps of each environment in a round, with the weights at its beginning.
        updates: Batches of a round; with the steps and the environments this is the replay ratio.
        batch_size: Transitions in a batch.
        warm_up_steps: Steps of each environment before all others, in round 0, with actions drawn
            uniformly from the action space.
        capacity: Newest transitions to sample from; the replay buffer itself keeps all.
        rounds_per_reset: 1 begins every round with a reset. With N the environments go on for N
            rounds, so that episodes may be longer than a round; a resumed run repeats the recorded
            actions since the last reset.
        sequence_length: Above 1 a batch holds *batch_size* sequences of so many transitions; see
            `Memory.sample_sequences`.

    Raises:
        ValueError: A value is outside its range.
    """

    steps: int
    updates: int
    batch_size: int
    warm_up_steps: int = 0
    capacity: int = 1_000_000
    rounds_per_reset: int = 1
    sequence_length: int = 1

    def __post_init__(self) -> None:
        for name in (
            "steps",
            "updates",
            "batch_size",
            "capacity",
            "rounds_per_reset",
            "sequence_length",
        ):
            _require_count(name, getattr(self, name), 1)
        _require_count("warm_up_steps", self.warm_up_steps, 0)
        if self.capacity < self.sequence_length:
            raise ValueError(
                f"capacity must be at least sequence_length, {self.sequence_length}, got "
                f"{self.capacity}"
            )


def _require_count(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number, at least {least}, got {value!r}")


def _forget(state: dict[str, Tensor], rows: Tensor) -> None:
    """Set the policy's state to 0 in *rows*, bool ``[N]``."""
    for name, tensor in state.items():
        state[name] = tensor.masked_fill(rows.view(-1, *[1] * (tensor.ndim - 1)), 0)


class EnvironmentRounds:
    """Collects in environments with the newest weights, and samples the batches of each round.

    All that it collects goes to the agent's replay buffer; a run that repeats another one has a
    buffer of its own. A round is a function of its number, the weights and the run's seed, if the
    environments are deterministic. This is checked once in each attempt, by repeating recorded
    actions twice: environments that are not, or that keep state over a reset, are named in a
    warning with the remedy, and then reset before every round.

    Args:
        context: The run's.
        transitions: Recorded by earlier runs, with which the sampling begins; empty for none.
        make_environments: Function that makes the vector environment, as `gymnasium.make_vec`.
            Spaces of one environment: a Box, Discrete or another that is one array.
        act: The policy; see `Act`. It computes in the run's precision.
        options: Size of the rounds.
    """

    def __init__(
        self,
        context: RunContext,
        transitions: RecordedTransitions,
        make_environments: Callable[[], VectorEnv],
        act: Act,
        options: RoundOptions,
    ) -> None:
        self._context, self._earlier, self._options = context, transitions, options
        self._make, self._act = make_environments, act
        self._next_round = -1
        self._course: Course | None = None
        self._unchecked: list[Step] = []  # since the last reset, until they have been repeated
        self._checked, self._deterministic = False, True
        self._tried: dict[int, list[Step]] = {}  # by round, of those that only check
        self._told: set[str] = set()  # warnings

    def batches(self, round_: int, roles: Roles) -> list[Batch]:
        """Collect *round_* and sample its batches: `OnPolicyJob.batches`.

        Raises:
            UnsuitableEnvironmentError: Transitions of the environments cannot be recorded.
            UnsuitableActionsError: *act* returned something other than one action for each.
            ValueError: Rounds before were recorded in another number of environments.
            ReplayBufferWriteError: The disk refuses.
            ValueError: The rounds so far are shorter than a sequence.
        """
        if roles.check:
            return self._try_out(round_, roles)
        if round_ != self._next_round:
            self._load(round_)
        course = self._begin(round_)
        steps = self._collect(round_, roles, course, self._recorded.take_of(round_))
        if not self._checked:
            self._unchecked += steps
        self._recorded.append(round_, steps)
        self._memory.add(transitions_of(steps))
        self._next_round = round_ + 1
        return self._sample(round_, roles, self._memory)

    def _try_out(self, round_: int, roles: Roles) -> list[Batch]:
        """The batches of *round_* alone; nothing is recorded."""
        environments = self._make()
        memory = Memory(environments, self._options.capacity)
        if self._options.sequence_length > 1:  # a round alone may be shorter than a sequence
            memory.add(_of_environments(self._earlier))
            for number in range(round_):
                if number not in self._tried:
                    course = self._reset(environments, number)
                    self._tried[number] = self._collect(number, roles, course, take=0)
                memory.add(transitions_of(self._tried[number]))
        steps = self._collect(round_, roles, self._reset(environments, round_), take=0)
        before = self._tried.setdefault(round_, steps)
        if environments_differ(before, steps):
            self._warn_of(NOT_DETERMINISTIC, environments)
            steps = before  # so that two calls give equal batches
        environments.close()
        memory.add(transitions_of(steps))
        return self._sample(round_, roles, memory)

    def _load(self, round_: int) -> None:
        """Take over the rounds before *round_* as an earlier attempt has recorded them."""
        folder = self._context.run_folder if self._context.repeats else self._context.agent_folder
        self._recorded = RecordedRounds(ReplayBuffer(folder / "replay"), self._context.run_id)
        environments = self._make()
        self._memory = Memory(environments, self._options.capacity)
        self._memory.add(_of_environments(self._earlier))
        self._unchecked, self._checked, self._course = [], False, None
        for number in range(round_):
            steps = self._recorded.pop(number, environments.num_envs, self._length(number))
            self._memory.add(transitions_of(steps))
            if number % self._options.rounds_per_reset == 0:
                self._unchecked = []
            self._unchecked += steps
        environments.close()

    def _begin(self, round_: int) -> Course:
        """The environments as *round_* finds them."""
        per_reset = self._options.rounds_per_reset
        if self._unchecked and not self._checked:
            self._check(round_ - 1 - (round_ - 1) % per_reset)
        if self._course is None or not self._deterministic or round_ % per_reset == 0:
            environments = self._make() if self._course is None else self._course.environments
            self._course = self._reset(environments, round_)
        return self._course

    def _check(self, first: int) -> None:
        """Repeat the steps since the reset before round *first* in new environments."""
        if self._course is not None:
            self._course.environments.close()
        self._course, difference = repeated(
            self._unchecked,
            lambda: self._reset(self._make(), first),
            lambda course: self._reset(course.environments, first),
        )
        self._checked, self._unchecked = True, []
        self._deterministic = difference is None
        if difference is not None:
            self._warn_of(difference, self._course.environments)

    def _warn_of(self, difference: Difference, environments: VectorEnv) -> None:
        self._warn(
            difference.event,
            environments,
            reason=difference.reason,
            consequence="every round begins with a reset, and a resumed run may differ from an "
            "undisturbed one",
            remedy=difference.remedy,
        )

    def _warn(self, event: str, environments: VectorEnv, **fields: str) -> None:
        """Log the warning *event*, once."""
        if event not in self._told:
            self._told.add(event)
            self._context.logger.warning(event, environment=name_of(environments), **fields)

    def _reset(self, environments: VectorEnv, round_: int) -> Course:
        name = f"{self._context.run_id}/{round_}"
        return Course(environments, self._seed(round_, _RESET), name)

    def _collect(self, round_: int, roles: Roles, course: Course, take: int) -> list[Step]:
        space = course.environments.action_space
        space.seed(self._seed(round_, _RANDOM))
        generator = torch.Generator(roles.device).manual_seed(self._seed(round_, _ACT))
        random_steps = self._length(round_) - self._options.steps
        steps: list[Step] = []
        state: dict[str, Tensor] = {}
        for number in range(self._length(round_)):
            if number < random_steps:
                actions = space.sample()
            else:
                actions = self._actions(course, roles, generator, state)
            place = Place(run=self._context.run_id, round=round_, step=number, take=take)
            steps.append(course.step(actions, place))
        return steps

    def _actions(
        self, course: Course, roles: Roles, generator: torch.Generator, state: dict[str, Tensor]
    ) -> Array:
        """What the policy does, or a random action where that is not finite."""
        _forget(state, torch.as_tensor(course.begins, device=roles.device))
        # A copy: the function may change it in place, and the record needs what was observed.
        observations = torch.tensor(course.observations, device=roles.device)
        if observations.is_floating_point():
            observations = observations.float()
        space = course.environments.action_space
        chosen = checked_actions(
            self._act(roles.policy, observations, generator, state), self._act, observations, space
        )
        check_state(state, self._act, len(chosen))
        finite = np.isfinite(chosen).reshape(len(chosen), -1).all(axis=1)
        if not finite.all():
            chosen[~finite] = space.sample()[~finite]
            _forget(state, torch.as_tensor(~finite, device=roles.device))
            self._warn(
                "actions_not_finite",
                course.environments,
                function=name_of_function(self._act),
                consequence="random actions are taken instead; this is told once",
            )
        return in_type(chosen, self._act, space)

    def _sample(self, round_: int, roles: Roles, memory: Memory) -> list[Batch]:
        generator = torch.Generator().manual_seed(self._seed(round_, _SAMPLE))
        batches = self._options.updates * roles.batches_per_step
        rows, length = self._options.batch_size, self._options.sequence_length
        if length > 1:
            return [memory.sample_sequences(rows, length, generator) for _ in range(batches)]
        return [memory.sample(rows, generator) for _ in range(batches)]

    def _length(self, round_: int) -> int:
        """Steps of each environment in *round_*."""
        return self._options.steps + (self._options.warm_up_steps if round_ == 0 else 0)

    def _seed(self, round_: int, use: int) -> int:
        sequence = np.random.SeedSequence((self._context.seed, round_, use))
        return int(sequence.generate_state(1)[0]) >> 1


def _of_environments(transitions: RecordedTransitions) -> Iterable[Transition]:
    """Those of *transitions* that an environment gave."""
    return (
        transition
        for transition in transitions
        if OBSERVATION in transition.next_observation and ACTION in transition.action
    )
