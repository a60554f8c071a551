import random

import pytest

from infrastructure.agent_contract.transition import Box, Discrete, Transition, TransitionSpec
from infrastructure.trajectories import split_rows
from infrastructure.trajectories.data_checks import check_data

SPEC = TransitionSpec(
    observation={"load": Box(), "place": Box(shape=(2,)), "topic": Discrete(values=("a", "b"))},
    action={"reply": Discrete(values=("x", "y"))},
    targets={"solved": Discrete(values=("false", "true")), "reward": Box()},
    success=("solved", "true"),
)


@pytest.fixture(scope="session")
def spec():
    return SPEC


@pytest.fixture(scope="session")
def record_noise():
    """Rows of numbers, labels and outcomes that have nothing to do with one another."""

    def make(rows=1000, rows_per_group=1, seed=0):
        generator = random.Random(seed)
        return [
            Transition(
                group=f"g{number // rows_per_group}",
                observation={
                    "load": generator.gauss(0, 1),
                    "place": (generator.gauss(5, 2), generator.gauss(0, 1)),
                    "topic": generator.choice("ab"),
                },
                action={"reply": generator.choice("xy")},
                reward=generator.gauss(0, 1),
                next_observation={"solved": generator.random() < 0.4},
            )
            for number in range(rows)
        ]

    return make


@pytest.fixture(scope="session")
def check():
    """Findings about transitions that are split as the spec says."""

    def run(spec, transitions):
        rows = split_rows(spec.split, [transition.group for transition in transitions])
        return check_data(spec, transitions, rows)

    return run


@pytest.fixture(scope="session")
def record_grid():
    """Episodes in a grid of 36 states, whose moves decide all that happens."""

    def make(episodes=300, lengths=(30,), always_start=None, seed=0):
        generator, made = random.Random(seed), []
        moves = {"u": (0, 1), "d": (0, -1), "l": (-1, 0), "r": (1, 0)}
        for episode in range(episodes):
            x, y = always_start or (generator.randrange(6), generator.randrange(6))
            for _ in range(generator.choice(lengths)):
                move = generator.choice("udlr")
                after = [
                    min(5, max(0, at + by)) for at, by in zip((x, y), moves[move], strict=True)
                ]
                done = after == [5, 5]
                made.append(
                    Transition(
                        group=f"e{episode}",
                        observation={"x": x, "y": y},
                        action={"move": move},
                        reward=float(done),
                        next_observation={"x": after[0], "y": after[1]},
                        terminated=done,
                    )
                )
                x, y = after
                if done:
                    break
        return made

    return make


GRID = TransitionSpec(
    observation={"x": Box(), "y": Box()},
    action={"move": Discrete(values=tuple("udlr"))},
    targets={
        "x": Box(),
        "y": Box(delta=True),
        "reward": Box(),
        "terminated": Discrete(values=("false", "true")),
    },
)


@pytest.fixture(scope="session")
def grid_spec():
    return GRID
