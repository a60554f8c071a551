"""An agent with synthetic transitions: ten numbers, a label, and a reward that follow from them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from infrastructure.world_model_agent import (
    Box,
    Discrete,
    RunContext,
    Transition,
    TransitionSpec,
    WorldModelAgent,
)

GROUP_ROWS = 200
_LABELS = ("left", "stay", "right")


class SyntheticAgent(WorldModelAgent):
    """Trains on all that is recorded; *rows* are generated, *steps* are trained."""

    name = "synthetic"
    epochs = 2
    patience = None

    def __init__(self, rows: int, steps: int) -> None:
        self.newest_transitions = rows
        self.training_steps = steps

    def spec(self) -> TransitionSpec:
        """Ten numbers and a label; the targets are a label and the reward."""
        return TransitionSpec(
            observation={"state": Box(shape=(10,))},
            action={"move": Discrete(values=_LABELS)},
            targets={"fell": Discrete(values=("false", "true")), "reward": Box()},
        )

    def collect(self, context: RunContext) -> Iterator[Transition]:
        """Generate the transitions; the run's seed does not matter."""
        del context
        yield from generate(self.newest_transitions)


def generate(rows: int) -> Iterator[Transition]:
    """Yield synthetic transitions, the same in every call."""
    random = np.random.default_rng(0)
    for group in range(-(-rows // GROUP_ROWS)):
        states = random.normal(size=(GROUP_ROWS, 10))
        moves = random.integers(3, size=GROUP_ROWS)
        rewards = states[:, 0] * (moves - 1) + 0.5 * states[:, 1] + 0.1 * states[:, 2] ** 3
        falls = rewards + random.normal(size=GROUP_ROWS) > 1.0
        made = min(GROUP_ROWS, rows - group * GROUP_ROWS)
        columns = zip(states.tolist(), moves.tolist(), rewards.tolist(), falls, strict=True)
        for state, move, reward, fell in islice(columns, made):
            yield Transition(
                group=f"episode-{group}",
                observation={"state": state},
                action={"move": _LABELS[move]},
                reward=reward,
                next_observation={"fell": "true" if fell else "false"},
            )
