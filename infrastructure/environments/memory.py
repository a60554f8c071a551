"""The newest transitions as arrays, to sample batches from."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate
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

    Those of one environment in one run, in their order, are a stream.

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
        self._begins = torch.zeros(capacity)  # 1 where an episode begins in its stream
        self._name = name_of(environments)
        self._streams: dict[tuple[object, object], list[int]] = defaultdict(list)  # their numbers
        self._last: dict[tuple[object, object], Transition] = {}  # of each stream

    def add(self, transitions: Iterable[Transition]) -> None:
        """Add *transitions* in their order; above the capacity the oldest leave.

        Raises:
            UnsuitableEnvironmentError: One is of an environment of another shape.
        """
        for transition in transitions:
            row = self._added % self._capacity
            stream = transition.info.get("run"), transition.info.get("environment")
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
            self._begins[row] = not _goes_on(self._last.get(stream), transition)
            self._last[stream] = transition
            self._streams[stream].append(self._added)
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

    def sample_sequences(self, rows: int, length: int, generator: torch.Generator) -> Batch:
        """*rows* windows of *length* consecutive transitions of one stream, drawn as in `sample`.

        Returns:
            What `sample` returns, ``[rows, length, …]``; and ``first``, 1 where the window or an
            episode begins, else 0, float32 ``[rows, length]``.

        Raises:
            ValueError: No stream is long enough.
        """
        streams = list(self._streams.values())
        for numbers in streams:
            del numbers[: bisect_left(numbers, self._added - self._capacity)]
        ends = list(accumulate(max(0, len(numbers) - length + 1) for numbers in streams))
        if not ends or ends[-1] == 0:
            raise ValueError(
                f"{self._name} gave no {length} consecutive transitions yet, counted in each "
                "environment: collect more steps in a round, or shorten sequence_length"
            )
        windows = []
        for drawn in torch.randint(ends[-1], (rows,), generator=generator).tolist():
            chosen = bisect_right(ends, drawn)
            end = len(streams[chosen]) - (ends[chosen] - 1 - drawn)
            windows.append(streams[chosen][end - length : end])
        index = torch.tensor(windows) % self._capacity
        batch = {name: tensor[index] for name, tensor in self._tensors.items()}
        first = self._begins[index]
        first[:, 0] = 1
        return {**batch, "first": first}


def _goes_on(before: Transition | None, transition: Transition) -> bool:
    """Whether *transition* follows *before* in one episode."""
    return (
        before is not None
        and before.group == transition.group
        and before.next_observation == transition.observation
    )
