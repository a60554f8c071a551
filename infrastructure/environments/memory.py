"""The newest transitions as arrays, to sample batches from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from infrastructure.agent_contract import Transition
from infrastructure.agent_contract.training_job import Batch
from infrastructure.environments.course import (
    ACTION,
    OBSERVATION,
    Array,
    UnsuitableEnvironmentError,
    name_of,
)

if TYPE_CHECKING:
    from gymnasium import Space
    from gymnasium.vector import VectorEnv


class Memory:
    """Holds the newest *capacity* transitions.

    Args:
        environments: Whose spaces of one environment decide shapes and types: floating-point
            numbers become float32, the rest keeps its type.

    Raises:
        UnsuitableEnvironmentError: Observations or actions are not arrays of one shape.
    """

    def __init__(self, environments: VectorEnv, capacity: int) -> None:
        def array(field: str, space: Space[Array]) -> Array:
            if space.dtype is None or space.shape is None or not hasattr(space, "shape"):
                raise UnsuitableEnvironmentError(
                    name_of(environments),
                    f"an {field} space {space}",
                    "wrap it so that it is a Box or Discrete (FlattenObservation, FlattenAction)",
                )
            floating = np.issubdtype(space.dtype, np.floating)
            return np.zeros((capacity, *space.shape), np.float32 if floating else space.dtype)

        observation = environments.single_observation_space
        self._arrays = {
            "observation": array("observation", observation),
            "action": array("action", environments.single_action_space),
            "reward": np.zeros(capacity, np.float32),
            "next_observation": array("observation", observation),
            "terminated": np.zeros(capacity, np.float32),
        }
        self._tensors = {name: torch.from_numpy(array) for name, array in self._arrays.items()}
        self._capacity, self._added = capacity, 0
        self._name = name_of(environments)

    def add(self, transitions: Iterable[Transition]) -> None:
        """Add *transitions* in their order; above the capacity the oldest leave.

        Raises:
            UnsuitableEnvironmentError: One is of an environment of another shape.
        """
        for transition in transitions:
            row = self._added % self._capacity
            for name, value in (
                ("observation", transition.observation[OBSERVATION]),
                ("action", transition.action[ACTION]),
                ("reward", transition.reward),
                ("next_observation", transition.next_observation[OBSERVATION]),
                ("terminated", transition.terminated),
            ):
                array = self._arrays[name]
                numbers = np.asarray(value, array.dtype)
                if numbers.size != array[row].size:
                    raise UnsuitableEnvironmentError(
                        self._name,
                        f"{array[row].size} numbers in each {name}, and a recorded one has "
                        f"{numbers.size}",
                        "give another environment an agent of its own, or move replay/ of this one "
                        "away",
                    )
                array[row] = numbers.reshape(array.shape[1:])
            self._added += 1

    def sample(self, rows: int, generator: torch.Generator) -> Batch:
        """*rows* transitions, each drawn with equal probability, with replacement.

        Returns:
            ``observation``, ``action`` and ``next_observation`` ``[rows, …]``; ``reward`` and
            ``terminated`` (1 or 0) ``[rows]``, float32.
        """
        held = min(self._added, self._capacity)
        newest = torch.randint(held, (rows,), generator=generator)
        index: Tensor = (self._added - 1 - newest) % self._capacity
        return {name: tensor[index] for name, tensor in self._tensors.items()}
