"""Environments of gymnasium as data sets: transitions of a policy that draws its actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import gymnasium
import numpy as np

from benchmarks.world_model.recording import DYNAMICS, DataSet, Recording
from infrastructure.agent_contract import Transition
from infrastructure.agent_contract.transition import Box, Discrete, FieldType, TransitionSpec

STATE, ACTION = "state", "action"
STEPS_OF_EPISODE = 100
"""Steps of an episode, at most: more episodes make more groups."""

FRESH_EPISODES = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """An environment, and what is predicted besides the change of its state.

    Attributes:
        identifier: Name that gymnasium knows.
        further: Further targets.
        most_rows: Transitions to record, at most; the last episode is finished.
    """

    identifier: str
    further: Mapping[str, FieldType]
    most_rows: int = 5000

    def record(self, seed: int, most_rows: int) -> Recording:
        """Play episodes until so many transitions are recorded; then further, fresh ones."""
        env = gymnasium.make(self.identifier)
        env.action_space.seed(seed)
        recorded, fresh, episode = list[Transition](), list[Transition](), 0
        while len(recorded) < (most_rows or self.most_rows):
            recorded += _play(env, f"{seed}/{episode}", seed * 100_000 + episode)
            episode += 1
        for number in range(episode, episode + FRESH_EPISODES):
            fresh += _play(env, f"{seed}/{number}", seed * 100_000 + number)
        spec = _spec(env, self.further)
        env.close()
        return Recording(spec=spec, target=STATE, transitions=recorded, fresh=fresh)


def _spec(env: gymnasium.Env, further: Mapping[str, FieldType]) -> TransitionSpec:
    size = len(env.observation_space.sample())
    action: FieldType = Box(shape=(1,))
    if isinstance(env.action_space, gymnasium.spaces.Discrete):
        action = Discrete(values=tuple(map(str, range(int(env.action_space.n)))))
    return TransitionSpec(
        observation={STATE: Box(shape=(size,))},
        action={ACTION: action},
        targets={STATE: Box(shape=(size,), delta=True), **further},
    )


def _play(env: gymnasium.Env, group: str, seed: int) -> list[Transition]:
    state, _ = env.reset(seed=seed)
    transitions = list[Transition]()
    for _ in range(STEPS_OF_EPISODE):
        action = env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        transitions.append(
            Transition(
                group=group,
                observation={STATE: _numbers(state)},
                action={ACTION: str(action) if np.ndim(action) == 0 else _numbers(action)},
                reward=float(reward),
                next_observation={STATE: _numbers(following)},
                terminated=bool(terminated),
            )
        )
        if terminated or truncated:
            break
        state = following
    return transitions


def _numbers(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


_REWARD: Mapping[str, FieldType] = {"reward": Box()}
_END: Mapping[str, FieldType] = {"terminated": Discrete(values=("false", "true"))}


def _data_set(
    name: str, identifier: str, further: Mapping[str, FieldType], tuning: bool
) -> DataSet:
    environment = Environment(identifier=identifier, further=further)
    return DataSet(
        name=name, kind=DYNAMICS, package="gymnasium", tuning=tuning, record=environment.record
    )


ENVIRONMENTS: Sequence[DataSet] = (
    _data_set("pendulum", "Pendulum-v1", _REWARD, tuning=False),
    _data_set("cartpole", "CartPole-v1", _END, tuning=False),
    _data_set("acrobot", "Acrobot-v1", _END, tuning=False),
    _data_set("mountain_car_continuous", "MountainCarContinuous-v0", _REWARD, tuning=False),
    _data_set("mountain_car", "MountainCar-v0", _END, tuning=True),
)
"""All environments, those for tuning last."""
