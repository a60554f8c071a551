from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import torch

from infrastructure.agent_contract import Transition
from infrastructure.environments.course import UnsuitableEnvironmentError
from infrastructure.environments.memory import Memory


def transitions(*numbers: int) -> list[Transition]:
    return [
        Transition(
            group="episode",
            observation={"observation": (float(number),) * 4},
            action={"action": (number % 2,)},
            reward=number + 0.5,
            next_observation={"observation": (number + 1.0,) * 4},
            terminated=number == 3,
        )
        for number in numbers
    ]


def memory(capacity: int, *numbers: int) -> Memory:
    held = Memory(gymnasium.make_vec("CartPole-v1", num_envs=2), capacity)
    held.add(transitions(*numbers))
    return held


def sample(held: Memory, rows: int = 400) -> Any:
    return held.sample(rows, torch.Generator().manual_seed(1))


def test_a_batch_holds_rows_of_single_transitions():
    batch = sample(memory(10, 1, 2, 3))
    first = batch["observation"][:, 0]
    assert batch["observation"].shape == (400, 4)
    assert torch.equal(batch["next_observation"], batch["observation"] + 1)
    assert torch.equal(batch["reward"], first + 0.5)
    assert torch.equal(batch["action"], first.long() % 2)
    assert batch["action"].dtype == torch.int64
    assert torch.equal(batch["terminated"], (first == 3).float())
    counts = first.long().bincount().tolist()
    assert counts[0] == 0
    assert min(counts[1:]) > 100


def test_the_oldest_leave_when_there_is_no_more_room():
    assert set(sample(memory(3, 1, 2, 3, 4, 5))["observation"][:, 0].tolist()) == {3, 4, 5}


def test_what_has_left_before_does_not_change_the_sample():
    held = sample(memory(3, 1, 2, 3, 4, 5)), sample(memory(3, 3, 4, 5))
    assert all(torch.equal(held[0][name], held[1][name]) for name in held[0])


def test_records_of_another_environment_are_refused_by_field():
    held = Memory(gymnasium.make_vec("Pendulum-v1", num_envs=1), 3)
    with pytest.raises(UnsuitableEnvironmentError, match=r"3 numbers in each observation.* has 4"):
        held.add(transitions(1))
