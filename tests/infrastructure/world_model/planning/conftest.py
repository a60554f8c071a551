import random

import pytest
import torch

from infrastructure.agent_contract.transition import Box, Discrete, Transition, TransitionSpec
from infrastructure.world_model import WorldModel
from infrastructure.world_model.fitting import fit_candidates, prepare_training_data

LINE_SPEC = TransitionSpec(
    observation={"x": Box(shape=(2,))},
    action={"push": Box()},
    targets={
        "x": Box(shape=(2,), delta=True),
        "reward": Box(),
        "terminated": Discrete(values=("false", "true")),
    },
)
MAZE_SPEC = TransitionSpec(
    observation={"room": Discrete(values=("a", "b", "c", "d"))},
    action={"go": Discrete(values=("left", "right"))},
    targets={"room": Discrete(values=("a", "b", "c", "d")), "reward": Box()},
)


def _line_transitions(rows=3000):
    """``x' = x + (0.2 v, push)``, a quadratic cost, and an end beyond 3."""
    generator, made = random.Random(0), []
    for number in range(rows):
        place, speed, push = (generator.uniform(-s, s) for s in (4, 2, 1))
        after = (place + 0.2 * speed, speed + push)
        made.append(
            Transition(
                group=f"g{number // 30}",
                observation={"x": (place, speed)},
                action={"push": push},
                reward=-((push - 0.5) ** 2),
                next_observation={"x": after},
                terminated=abs(place) > 3,
            )
        )
    return made


def _maze_transitions():
    """Four rooms in a row; the last pays, and the way there costs."""
    generator, rooms, made = random.Random(0), "abcd", []
    for number in range(900):
        at, go = generator.randrange(4), generator.choice(("left", "right"))
        to = max(0, at - 1) if go == "left" else min(3, at + 1)
        made.append(
            Transition(
                group=f"g{number // 10}",
                observation={"room": rooms[at]},
                action={"go": go},
                reward=10.0 * (to == 3) - (go == "right"),
                next_observation={"room": rooms[to]},
            )
        )
    return made


@pytest.fixture(scope="session")
def line():
    torch.set_num_threads(1)
    model, rows = WorldModel(LINE_SPEC, members=3, hidden=32), _line_transitions()
    model.fit(rows, epochs=25, batch_size=64, device="cpu")
    data = prepare_training_data(LINE_SPEC, rows)  # the linear model has no members
    ensemble = fit_candidates(data, model.fitted_model.ensemble)["ensemble"]
    return WorldModel.from_fitted(ensemble, model.metrics)


@pytest.fixture(scope="session")
def maze():
    torch.set_num_threads(1)
    model = WorldModel(MAZE_SPEC, members=2, hidden=16)
    model.fit(_maze_transitions(), epochs=20, batch_size=32, device="cpu")
    return model
