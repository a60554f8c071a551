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
        self._stream = np.zeros(capacity, np.int32)  # number of each transition's stream
        self._streams: dict[tuple[object, object], int] = {}
        self._last: dict[int, Transition] = {}  # of each stream
        self._sorted: tuple[Tensor, Array] | None = None  # until transitions are added
        self._name = name_of(environments)

    def add(self, transitions: Iterable[Transition]) -> None:
        """Add *transitions* in their order; above the capacity the oldest leave.

        Raises:
            UnsuitableEnvironmentError: One is of an environment of another shape.
        """
        self._sorted = None
        for transition in transitions:
            row = self._added % self._capacity
            origin = transition.info.get("run"), transition.info.get("environment")
            stream = self._streams.setdefault(origin, len(self._streams))
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
            self._stream[row], self._last[stream] = stream, transition
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
        rows_of_streams, streams = self._by_stream()
        within = streams[length - 1 :] == streams[: max(0, len(streams) - length + 1)]
        starts = torch.from_numpy(within).nonzero()[:, 0]
        if not len(starts):
            raise ValueError(
                f"{self._name} gave no {length} consecutive transitions yet, counted in each "
                "environment: collect more steps in a round, or shorten sequence_length"
            )
        start = starts[torch.randint(len(starts), (rows, 1), generator=generator)]
        index = rows_of_streams[start + torch.arange(length)]
        batch = {name: tensor[index] for name, tensor in self._tensors.items()}
        first = self._begins[index]
        first[:, 0] = 1
        return {**batch, "first": first}

    def _by_stream(self) -> tuple[Tensor, Array]:
        """Rows in the order of their streams, the oldest first, and the stream of each."""
        if self._sorted is None:
            numbers = np.arange(max(0, self._added - self._capacity), self._added)
            rows = numbers % self._capacity
            rows = rows[np.argsort(self._stream[rows], kind="stable")]
            self._sorted = torch.from_numpy(rows), self._stream[rows]
        return self._sorted


def _goes_on(before: Transition | None, transition: Transition) -> bool:
    """Whether *transition* follows *before* in one episode."""
    if before is None or before.group != transition.group:
        return False
    one, other = before.next_observation, transition.observation
    return one == other or repr(one) == repr(other)  # NaN differs from itself
