"""The rounds of one run in the agent's replay buffer, which holds more than a checkpoint knows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from infrastructure.agent_contract import Transition
from infrastructure.environments.course import Place, Step
from infrastructure.trajectories import ReplayBuffer


class RecordedRounds:
    """Reads and appends the rounds of one run.

    After a crash the buffer may hold rounds that the checkpoint does not know. They are collected
    again: what comes out the same stays, what is missing is appended, and a round that differs is
    appended as a further take. Nothing recorded is removed; the last take of a round counts.

    Args:
        buffer: The agent's replay buffer.
        run: Identity of the run.
    """

    def __init__(self, buffer: ReplayBuffer, run: str) -> None:
        self._buffer = buffer
        takes: dict[int, dict[int, list[Transition]]] = defaultdict(lambda: defaultdict(list))
        for transition in buffer.read():
            if transition.info.get("run") == run:
                place = Place.of(transition)
                takes[place.round][place.take].append(transition)
        self._last = {round_: max(numbers.items()) for round_, numbers in takes.items()}

    def take_of(self, round_: int) -> int:
        """The last take of *round_*; 0 if it was not recorded."""
        return self._last.get(round_, (0, ()))[0]

    def pop(self, round_: int, environments: int, length: int) -> list[Step]:
        """The *length* steps of *round_* in so many *environments*; forgets them.

        Raises:
            ValueError: They were recorded in another number of environments, or are more steps.
        """
        rows: list[list[Transition | None]] = [[None] * environments for _ in range(length)]
        recorded = [
            (Place.of(transition).step, int(str(transition.info["environment"])), transition)
            for transition in self._last.pop(round_, (0, ()))[1]
        ]
        remedy = "make as many as before, or begin another run"
        numbers = {environment for _, environment, _ in recorded}
        if numbers and max(numbers) + 1 != environments:
            raise ValueError(
                f"round {round_} was recorded in {max(numbers) + 1} environments, and now there "
                f"are {environments}: {remedy}"
            )
        for step, environment, transition in recorded:
            if step >= length:
                raise ValueError(
                    f"round {round_} was recorded with more than the {length} steps of now: "
                    f"{remedy}"
                )
            rows[step][environment] = transition
        return [tuple(row) for row in rows]

    def append(self, round_: int, steps: Sequence[Step]) -> None:
        """Record *round_*, but for what is recorded already; wait until it is on the disk.

        Raises:
            ReplayBufferWriteError: It could not be written.
        """
        collected = transitions_of(steps)
        take, recorded = self._last.pop(round_, (0, []))
        missing = collected[len(recorded) :]
        if repr(collected[: len(recorded)]) != repr(recorded):  # NaN differs from itself
            missing = [
                replace(transition, info={**transition.info, "take": take + 1})
                for transition in collected
            ]
        for transition in missing:
            self._buffer.append(transition)
        self._buffer.flush()


def transitions_of(steps: Sequence[Step]) -> list[Transition]:
    """The transitions of *steps*, one environment after the other in each."""
    return [transition for transition in chain.from_iterable(steps) if transition is not None]
