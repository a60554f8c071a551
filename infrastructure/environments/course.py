"""Steps of vectorised environments since a reset, as transitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from infrastructure.agent_contract import Transition

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

Array: TypeAlias = "npt.NDArray[np.generic]"
Step: TypeAlias = "tuple[Transition | None, ...]"
"""One step of each environment; None where it was reset instead, its action ignored."""

OBSERVATION, ACTION = "observation", "action"


class UnsuitableEnvironmentError(TypeError):
    """Transitions of an environment cannot be recorded.

    Args:
        environment: Its name.
        problem: What it has.
        remedy: What to change.
    """

    def __init__(self, environment: str, problem: str, remedy: str) -> None:
        super().__init__(f"{environment} has {problem}: {remedy}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a step belongs; recorded with each of its transitions.

    Attributes:
        run: Run that has taken it.
        round: Round of the run.
        step: Step of the round.
        take: 0, or how often this round was collected differently before.
    """

    run: str
    round: int
    step: int
    take: int

    @classmethod
    def of(cls, transition: Transition) -> Place:
        """The place that was recorded with *transition*.

        Raises:
            KeyError, ValueError: None was.
        """
        run, *numbers = (transition.info[name] for name in ("run", "round", "step", "take"))
        round_, step, take = (int(str(number)) for number in numbers)
        return cls(run=str(run), round=round_, step=step, take=take)


class Course:
    """Vectorised environments from a reset on; ended episodes begin again by themselves.

    Args:
        environments: What to step; this resets them.
        seed: Seed of the reset.
        name: Prefix of the episodes' groups.

    Attributes:
        environments: As given.
        observations: Current ones, ``[N, …]``; always those of running episodes, but for
            environments that only reset themselves in the next step.
        begins: Whether they are the first ones of their episodes, bool ``[N]``.

    Raises:
        UnsuitableEnvironmentError: They do not begin again by themselves.
    """

    def __init__(self, environments: VectorEnv, seed: int, name: str) -> None:
        mode = environments.metadata.get("autoreset_mode", "NextStep")
        self._same_step = getattr(mode, "value", mode) == "SameStep"
        if getattr(mode, "value", mode) == "Disabled":
            raise UnsuitableEnvironmentError(
                name_of(environments), "autoreset_mode=DISABLED", "use NEXT_STEP or SAME_STEP"
            )
        self.environments, self._name = environments, name
        self.observations: Array = np.array(environments.reset(seed=seed)[0])
        self._ended = np.zeros(environments.num_envs, dtype=bool)
        self.begins = ~self._ended
        self._episodes = [0] * environments.num_envs

    def step(self, actions: Array, place: Place) -> Step:
        """Take one step with *actions*, ``[N, …]``."""
        before, resetting = self.observations, self._ended
        after, rewards, terminated, truncated, infos = self.environments.step(actions)
        self.observations, ended = np.array(after), terminated | truncated  # may be overwritten
        if self._same_step and ended.any():
            after = [infos["final_obs"][n] if ended[n] else after[n] for n in range(len(after))]
        step = tuple(
            None
            if resetting[n]
            else Transition(
                group=f"{self._name}-{n}-{self._episodes[n]}",
                observation={OBSERVATION: _numbers(before[n])},
                action={ACTION: _numbers(actions[n])},
                reward=float(rewards[n]),
                next_observation={OBSERVATION: _numbers(after[n])},
                terminated=bool(terminated[n]),
                info={
                    "run": place.run,
                    "round": place.round,
                    "step": place.step,
                    "take": place.take,
                    "environment": n,
                    "truncated": bool(truncated[n]),
                },
            )
            for n in range(len(rewards))
        )
        self._episodes = [
            count + int(end) for count, end in zip(self._episodes, ended, strict=True)
        ]
        self.begins = ended if self._same_step else resetting
        if not self._same_step:
            self._ended = ended
        return step

    def repeat(self, steps: Sequence[Step]) -> list[Step]:
        """Repeat the actions of the recorded *steps*, from the reset on; what came out of them."""
        space = self.environments.action_space
        actions = np.zeros(space.shape or (), dtype=space.dtype)
        made = []
        for step in steps:
            place = Place(run="", round=0, step=0, take=0)  # of a step that only resets
            for row, transition in enumerate(step):
                if transition is not None:  # else the action is ignored
                    place = Place.of(transition)
                    recorded = np.asarray(transition.action[ACTION], dtype=actions.dtype)
                    actions[row] = recorded.reshape(actions[row].shape)
            made.append(self.step(actions, place))
        return made


def name_of(environments: VectorEnv) -> str:
    """Name of *environments* for a person."""
    spec = getattr(environments, "spec", None)
    return str(getattr(spec, "id", None) or type(environments).__name__)


def _numbers(value: Array) -> tuple[float, ...]:
    return tuple(np.asarray(value).ravel().tolist())
